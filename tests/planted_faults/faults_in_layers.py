"""Faults in `heed.layers` and `heed.models`."""

from __future__ import annotations

from tests.planted_faults.fault import Fault

_LAYERS, _MODELS, _DECODING = "src/heed/layers", "src/heed/models", "src/heed/decoding"
_OF_LAYERS, _OF_MODELS, _OF_DECODING = "tests/layers", "tests/models", "tests/decoding"

FAULTS = (
    # Masks
    Fault(
        "a separate key keeps what lies in its padding",
        f"{_LAYERS}/attend.py",
        "source if key is None else masks.hide(key, columns)",
        "source if key is None else key",
        (f"{_OF_LAYERS}/test_attend_poisoned_keys.py",),
    ),
    Fault(
        "a mask that a tensor carries is dropped where one is given",
        f"{_LAYERS}/masks.py",
        "given = [carried] if explicit is None or explicit is carried else [explicit, carried]",
        "given = [carried] if explicit is None else [explicit]",
        (f"{_OF_LAYERS}/test_multi_head_attention.py",),
    ),
    Fault(
        "a sliding window forgets where a cache stands",
        f"{_LAYERS}/masks.py",
        "window = Mask.window(reach, None if use_causal_mask else reach, align=align)",
        "window = Mask.window(reach, None if use_causal_mask else reach)",
        (f"{_OF_LAYERS}/test_cache.py",),
    ),
    Fault(
        "where a decoder looked before in padding counts",
        f"{_LAYERS}/_location_aware_attention.py",
        "seen = masks.hide(ops.expand_dims(previous_weights, -1), columns)",
        "seen = ops.expand_dims(previous_weights, -1)",
        (f"{_OF_LAYERS}/test_location_aware_attention.py",),
    ),
    # The cache
    Fault(
        "the cache is written one position late",
        f"{_LAYERS}/_cache.py",
        "start = ops.stack([0, index, 0, 0])",
        "start = ops.stack([0, index + 1, 0, 0])",
        (f"{_OF_LAYERS}/test_cache.py",),
    ),
    Fault(
        "a mask of new positions hides the cached ones",
        f"{_LAYERS}/_cache.py",
        'whole = ops.ones(ops.shape(cache["key"])[:2], dtype="bool")',
        'whole = ops.zeros(ops.shape(cache["key"])[:2], dtype="bool")',
        (f"{_OF_LAYERS}/test_cache.py",),
    ),
    Fault(
        "keys in a cache are rotated as if they stood at its beginning",
        f"{_LAYERS}/_multi_head_attention.py",
        "self._keys, positions=rotary_key_positions, start=start, length=length, shared=shared",
        "self._keys, positions=rotary_key_positions, length=length, shared=shared",
        (f"{_OF_LAYERS}/test_multi_head_attention_options.py",),
    ),
    # Multi-head attention
    Fault(
        "heads of own widths are scaled by the widest",
        f"{_LAYERS}/_head_widths.py",
        "factors = [[(self.widest / width) ** 0.5] for width in self.each]",
        "factors = [[1.0] for width in self.each]",
        (f"{_OF_LAYERS}/test_multi_head_attention_heads.py",),
    ),
    Fault(
        "sinks take from rows without looking at their sum",
        f"{_LAYERS}/attend.py",
        "share = ops.sigmoid(lse - ops.reshape(sinks, (1, -1, 1)))",
        "share = ops.sigmoid(0 * lse - ops.reshape(sinks, (1, -1, 1)))",
        (f"{_OF_LAYERS}/test_multi_head_attention_options.py",),
    ),
    Fault(
        "all dropouts of a Transformer layer share one seed",
        f"{_LAYERS}/_transformer_layers.py",
        "return None if self.seed is None else self.seed + part",
        "return self.seed",
        (f"{_OF_LAYERS}/test_transformer_layers.py",),
    ),
    # Transformer layers
    Fault(
        "post-norm normalises before the sum",
        f"{_LAYERS}/_transformer_layers.py",
        "    x = add(x, change)\n    return (x if norm_first else norm(x)), *rest",
        "    x = add(x, change if norm_first else norm(change))\n    return x, *rest",
        (f"{_OF_LAYERS}/test_transformer_layers.py",),
    ),
    Fault(
        "an embedding is not scaled",
        f"{_LAYERS}/_embedding.py",
        "x = x * self.width**0.5",
        "x = x * 1.0",
        (f"{_OF_LAYERS}/test_embedding.py",),
    ),
    # Models
    Fault(
        "beam search compares open hypotheses by their current length",
        f"{_DECODING}/_beam.py",
        "attainable = (scores / full)[:, 0]",
        "attainable = (scores / penalty(count, length_penalty))[:, 0]",
        (f"{_OF_DECODING}/test_generation.py",),
    ),
    Fault(
        "beams take the state of another row",
        f"{_DECODING}/_beam.py",
        "state = decoder.select(state, ops.reshape(parents + first_row, (-1,)))",
        "state = decoder.select(state, ops.reshape(parents, (-1,)))",
        (f"{_OF_DECODING}/test_generation.py",),
    ),
    Fault(
        "the length penalty counts one token too few",
        f"{_DECODING}/_beam.py",
        'count = ops.maximum(ops.cast(index, "float32") + 1.0 - given_length, 0.0)',
        'count = ops.maximum(ops.cast(index, "float32") - given_length, 0.0)',
        (f"{_OF_DECODING}/test_generation.py",),
    ),
    Fault(
        "top_p leaves out the token that reaches it",
        f"{_DECODING}/_sampling.py",
        "before = ops.cumsum(mass, axis=-1) - mass",
        "before = ops.cumsum(mass, axis=-1)",
        (f"{_OF_DECODING}/test_generation.py",),
    ),
    Fault(
        "rotation in the decoder begins at 0 in each step",
        f"{_MODELS}/_stack.py",
        'ops.arange(query_length, dtype="int32") + start_index}',
        'ops.arange(query_length, dtype="int32")}',
        (f"{_OF_DECODING}/test_generation.py", f"{_OF_MODELS}/test_transformer.py"),
    ),
    Fault(
        "an ensemble adds up alignments",
        f"{_MODELS}/_ensemble.py",
        "*(sum(x) / len(x) for x in alignments)",
        "*(sum(x) for x in alignments)",
        (f"{_OF_MODELS}/test_ensemble.py",),
    ),
    Fault(
        "a recurrent encoder reads padding",
        f"{_MODELS}/_recurrent_translator.py",
        "block(x, mask=mask, training=training)",
        "block(x, training=training)",
        (f"{_OF_MODELS}/test_recurrent_translator.py",),
    ),
    Fault(
        "rows and columns of patches change places in sinusoidal positions",
        f"{_MODELS}/_vision_transformer.py",
        "table = [ops.repeat(down, columns, axis=0), ops.tile(across, (rows, 1))]",
        "table = [ops.tile(across, (rows, 1)), ops.repeat(down, columns, axis=0)]",
        (f"{_OF_MODELS}/test_vision_transformer.py",),
    ),
    Fault(
        "what an encoder of features masks is attended to",
        f"{_MODELS}/_transformer.py",
        "return implicit_mask(encoded)",
        "return None",
        (f"{_OF_MODELS}/test_transformer_encoders.py",),
    ),
)
