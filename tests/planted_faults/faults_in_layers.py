"""Faults in `heed.layers` and `heed.models`."""

from __future__ import annotations

from tests.planted_faults.fault import Fault

_LAYERS, _MODELS = "src/heed/layers", "src/heed/models"
_OF_LAYERS, _OF_MODELS = "tests/layers", "tests/models"

FAULTS = (
    # Projections
    Fault(
        "projections are many small products",
        f"{_LAYERS}/_projections.py",
        "layer = FlatEinsumDense(",
        "layer = keras.layers.EinsumDense(",
        (f"{_OF_LAYERS}/test_flat_dense.py",),
    ),
    # Masks
    Fault(
        "a separate key keeps what lies in its padding",
        f"{_LAYERS}/attend.py",
        "source if key.tensor is None else masks.hide(key.tensor, columns)",
        "source if key.tensor is None else key.tensor",
        (f"{_OF_LAYERS}/test_poisoned_keys.py",),
    ),
    Fault(
        "a separate key keeps what lies in its padding, in layers with one head",
        f"{_LAYERS}/_single_head.py",
        "key = value if key is None else masks.hide(key, columns)",
        "key = value if key is None else key",
        (f"{_OF_LAYERS}/test_poisoned_keys.py",),
    ),
    Fault(
        "a mask that a tensor carries is dropped where one is given",
        f"{_LAYERS}/masks.py",
        "given = [carried] if explicit is None or explicit is carried else [explicit, carried]",
        "given = [carried] if explicit is None else [explicit]",
        (f"{_OF_LAYERS}/test_multi_head_attention.py",),
    ),
    Fault(
        "a sliding window is one wider than Keras'",
        f"{_LAYERS}/masks.py",
        "reach = sliding_window - 1",
        "reach = sliding_window",
        (f"{_OF_LAYERS}/test_multi_head_attention.py::test_any_mask_agrees_with_stock",),
    ),
    Fault(
        "a sliding window forgets where a cache stands",
        f"{_LAYERS}/masks.py",
        "window = Mask.window(reach, None if use_causal_mask else reach, align=align)",
        "window = Mask.window(reach, None if use_causal_mask else reach)",
        (f"{_OF_LAYERS}/test_cache.py",),
    ),
    Fault(
        "attention_mask is dropped by layers with one head",
        f"{_LAYERS}/_single_head.py",
        "            masks.padding(rows, columns, heads=False),\n            attention_mask,",
        "            masks.padding(rows, columns, heads=False),",
        (f"{_OF_LAYERS}/test_dot_product_attention.py", f"{_OF_LAYERS}/test_additive_attention.py"),
    ),
    Fault(
        "the output loses its mask",
        f"{_LAYERS}/attend.py",
        "masks.carry(result, query_mask)",
        "masks.carry(result, None)",
        (f"{_OF_LAYERS}/test_multi_head_attention.py",),
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
        f"{_LAYERS}/multi_head_attention.py",
        "keys = functools.partial(self._keys, positions=rotary_key_positions, **place)",
        "keys = functools.partial(self._keys, positions=rotary_key_positions, length=length)",
        (f"{_OF_LAYERS}/test_beyond_keras.py",),
    ),
    # Multi-head attention
    Fault(
        "queries are not normalised",
        f"{_LAYERS}/multi_head_attention.py",
        "projected = self._query_norm(projected)",
        "projected = projected * 1",
        (f"{_OF_LAYERS}/test_beyond_keras.py",),
    ),
    Fault(
        "sinks take from rows without looking at their sum",
        f"{_LAYERS}/attend.py",
        "share = ops.sigmoid(lse - ops.reshape(sinks, (1, -1, 1)))",
        "share = ops.sigmoid(0 * lse - ops.reshape(sinks, (1, -1, 1)))",
        (f"{_OF_LAYERS}/test_beyond_keras.py",),
    ),
    Fault(
        "the gate reads what the attention gave",
        f"{_LAYERS}/attend.py",
        "heads = heads * gate(shown)",
        "heads = heads * (1 - gate(shown))",
        (f"{_OF_LAYERS}/test_multi_head_attention.py::test_gate_agrees_with_stock",),
    ),
    Fault(
        "scores come without dropout in training",
        f"{_LAYERS}/attend.py",
        "dropped = dropout if scores_drop else {}",
        "dropped: dict = {}",
        (f"{_OF_LAYERS}/test_multi_head_attention.py::test_dropout",),
    ),
    Fault(
        "all dropouts of a Transformer layer share one seed",
        f"{_LAYERS}/transformer_layers.py",
        "return None if self.seed is None else self.seed + part",
        "return self.seed",
        (f"{_OF_LAYERS}/test_transformer_layers.py",),
    ),
    # Transformer layers
    Fault(
        "the implicit mask of what a decoder layer reads is not looked at",
        f"{_LAYERS}/transformer_layers.py",
        '"value_mask": implicit_mask(encoded) if encoded_mask is None else encoded_mask,',
        '"value_mask": encoded_mask,',
        (f"{_OF_LAYERS}/test_transformer_layers.py",),
    ),
    Fault(
        "cross-attention has a sliding window",
        f"{_LAYERS}/transformer_layers.py",
        'self._make_attention("cross_attention", width, source_width, 4, None)',
        'self._make_attention("cross_attention", width, source_width, 4, self.sliding_window)',
        (f"{_OF_LAYERS}/test_transformer_layers.py",),
    ),
    Fault(
        "post-norm normalises before the sum",
        f"{_LAYERS}/transformer_layers.py",
        "        if not self.norm_first:\n            x = norm(x)\n",
        "",
        (f"{_OF_LAYERS}/test_transformer_layers.py",),
    ),
    Fault(
        "the activation is not that of the arguments",
        f"{_LAYERS}/transformer_layers.py",
        "            activation=self.activation,\n            dropout",
        '            activation="relu",\n            dropout',
        (f"{_OF_LAYERS}/test_transformer_layers.py",),
    ),
    Fault(
        "an embedding is not scaled",
        f"{_LAYERS}/embedding.py",
        "x = x * self.width**0.5",
        "x = x * 1.0",
        (f"{_OF_LAYERS}/test_embedding.py",),
    ),
    Fault(
        "learned positions begin at the beginning",
        f"{_LAYERS}/positions.py",
        "return inputs + ops.slice(table, (start_index, 0), (shape[1], shape[2]))",
        "return inputs + ops.slice(table, (0, 0), (shape[1], shape[2]))",
        (f"{_OF_LAYERS}/test_position_layers.py",),
    ),
    # Models
    Fault(
        "beam search compares open hypotheses by their current length",
        f"{_MODELS}/beam.py",
        "attainable = (scores / penalty(float(length) - given_length, length_penalty))[:, 0]",
        "attainable = (scores / penalty(count, length_penalty))[:, 0]",
        (f"{_OF_MODELS}/test_decoding.py",),
    ),
    Fault(
        "beams take the state of another row",
        f"{_MODELS}/beam.py",
        "state = decoder.select(state, ops.reshape(parents + first_row, (-1,)))",
        "state = decoder.select(state, ops.reshape(parents, (-1,)))",
        (f"{_OF_MODELS}/test_decoding.py",),
    ),
    Fault(
        "the length penalty counts one token too few",
        f"{_MODELS}/beam.py",
        'count = ops.maximum(ops.cast(index, "float32") + 1.0 - given_length, 0.0)',
        'count = ops.maximum(ops.cast(index, "float32") - given_length, 0.0)',
        (f"{_OF_MODELS}/test_decoding.py",),
    ),
    Fault(
        "one uniform number serves all sampling steps",
        f"{_MODELS}/decoding.py",
        'uniform = column(inputs["uniform"], index)',
        'uniform = inputs["uniform"][:, 0]',
        (f"{_OF_MODELS}/test_decoding.py",),
    ),
    Fault(
        "top_p leaves out the token that reaches it",
        f"{_MODELS}/sampling.py",
        "before = ops.cumsum(mass, axis=-1) - mass",
        "before = ops.cumsum(mass, axis=-1)",
        (f"{_OF_MODELS}/test_decoding.py",),
    ),
    Fault(
        "temperature multiplies",
        f"{_MODELS}/sampling.py",
        "logits = logits / temperature",
        "logits = logits * temperature",
        (f"{_OF_MODELS}/test_decoding.py",),
    ),
    Fault(
        "padding can be decoded",
        f"{_MODELS}/incremental_decoder.py",
        "self._forbidden[[self.config.pad_id, self.config.start_id]] = _IMPOSSIBLE",
        "self._forbidden[[self.config.start_id]] = _IMPOSSIBLE",
        (f"{_OF_MODELS}/test_decoding.py",),
    ),
    Fault(
        "prompts are read without the start",
        f"{_MODELS}/incremental_decoder.py",
        "self._model.decode_step(tokens[:, :shared]",
        "self._model.decode_step(prompt[:, :shared]",
        (f"{_OF_MODELS}/test_language_model.py",),
    ),
    Fault(
        "the end in a prompt is read over",
        f"{_MODELS}/incremental_decoder.py",
        "going = ops.logical_and(prompt != config.pad_id, prompt != config.end_id)",
        "going = prompt != config.pad_id",
        (f"{_OF_MODELS}/test_language_model.py",),
    ),
    Fault(
        "rotation in the decoder begins at 0 in each step",
        f"{_MODELS}/_input.py",
        'ops.arange(query_length, dtype="int32") + start_index}',
        'ops.arange(query_length, dtype="int32")}',
        (f"{_OF_MODELS}/test_decoding.py", f"{_OF_MODELS}/test_transformer.py"),
    ),
    Fault(
        "attention_dropout of the config is not used",
        f"{_MODELS}/_stack.py",
        "attention_dropout=config.attention_dropout,",
        "attention_dropout=0.0,",
        (f"{_OF_MODELS}/test_transformer.py",),
    ),
)
