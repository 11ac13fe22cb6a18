"""Writes Transformers as CTranslate2 model folders, for its C++ and Python servers on CPUs and GPUs.

CTranslate2 has no graph: a model is a set of named tables, and options without a table are refused. `write` makes a
folder that `ctranslate2.Translator` opens (`ctranslate2.Generator` for a language model): model.bin, config.json and
the vocabularies, whose tokens are in the order of heed's ids.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from heed.export.errors import ExportError
from heed.export.formats import FORMATS, ExportJob
from heed.layers import TransformerDecoderLayer
from heed.models import LanguageModel, Transformer, TransformerEncoder
from heed.models.config import TokensConfig
from heed.number_checks import check_integer
from heed.ops import alibi_slopes, relative_position_buckets, sinusoidal_positions

_FORMAT = FORMATS["ctranslate2"]
_OTHERS = "saved_model, litert and onnx can"
_UNKNOWN = "<unk>"
# CTranslate2's names of activations, by Keras' names.
_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "silu": "SWISH",
    "swish": "SWISH",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
}
# The config's fields that a folder can hold; any other must have its default.
_FIELDS = {
    *("source_vocabulary_size", "target_vocabulary_size", "vocabulary_size", "max_length"),
    *("pad_id", "start_id", "end_id", "tie_embeddings", "share_embeddings"),
    *("encoder_layers", "decoder_layers", "layers", "dropout", "attention_dropout", "position"),
    *("width", "num_heads", "num_key_value_heads", "key_dim", "value_dim", "qk_norm", "use_bias"),
    *("feed_forward_width", "activation", "gated", "norm_first", "normalization", "norm_epsilon"),
    *("scale_embeddings", "normalize_embeddings"),
}
_Array = NDArray[np.float32]


def write_artefact(job: ExportJob, folder: Path) -> list[str]:
    """Write a model folder with the names of a run's tokens. See `ExportFormat`."""
    sides = () if job.shipment is None else ("source", "target")
    tokens: dict[str, Any] = {
        f"{side}_tokens": make_unique(job.shipment.tokens[side]) for side in sides
    }
    write(job.model, folder, quantization=job.precision, **tokens)
    return []


def write(
    model: Any,
    folder: Path | str,
    *,
    quantization: str = "float32",
    longest: int = 2048,
    source_tokens: Sequence[str] | None = None,
    target_tokens: Sequence[str] | None = None,
) -> None:
    """Write a model folder of CTranslate2.

    Args:
        model: a `Transformer`, or a `LanguageModel`.
        folder: an existing empty folder.
        quantization: how to store weights: "float32", "float16", "bfloat16", or "int8" (integers and a float32 factor
            for each output). CTranslate2 chooses the type of its computations when it loads the model.
        longest: the most tokens of a source or target: the length of the table of sinusoidal positions, and the
            largest distance of ALiBi in an encoder. Learned positions have their own length, rotary and relative ones
            no bound.
        source_tokens, target_tokens: the names of the ids, without repetition, see `make_unique`. A language model has
            only `target_tokens`. Default: "0", "1", ...

    Raises:
        ExportError: if CTranslate2 does not have the model or an option of it, which the message names; if the
            vocabularies do not fit; if the ctranslate2 package is missing.
        OSError: if a file cannot be written.
    """
    _FORMAT.check_precision(quantization, "quantization")
    longest = check_integer("longest", longest, least=1)
    vocabularies = {"source": source_tokens, "target": target_tokens}
    _check_model(model)
    specification = _specify(model, longest)
    _name_tokens(specification, model, vocabularies, longest)
    specification.validate()
    # The package needs PyTorch to convert to bfloat16.
    specification.optimize("float32" if quantization == "bfloat16" else quantization)
    if quantization == "bfloat16":
        _round_to_bfloat16(specification)
    specification.save(str(folder))


def make_unique(tokens: Sequence[str]) -> list[str]:
    """Return the tokens, with the id appended to each repetition.

    >>> make_unique(["a", "b", "a"])
    ['a', 'b', 'a<2>']
    """
    found: dict[str, None] = {}
    for number, token in enumerate(tokens):
        while token in found:
            token = f"{token}<{number}>"
        found[token] = None
    return list(found)


def _check_model(model: Any) -> None:
    if not isinstance(model, (Transformer, LanguageModel)):
        raise ExportError(
            "CTranslate2 takes a heed.models.Transformer or a LanguageModel, no other model: "
            f"{_OTHERS}. Received: {type(model).__name__}"
        )
    if unsupported := list(_unsupported_options(model)):
        raise ExportError(f"CTranslate2 has no form of {', '.join(unsupported)}: {_OTHERS}")
    if not model.built:
        model.build()


def _unsupported_options(model: Any) -> Iterator[str]:
    """Yield the options that CTranslate2 cannot express, with their values."""
    config: TokensConfig = model.config
    if isinstance(model, Transformer) and not isinstance(model.encoder, TransformerEncoder):
        yield f"encoder={type(model.encoder).__name__}"
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in _FIELDS and value != field.default:
            yield f"{field.name}={value!r}"
    # Its cross-attention normalises all heads together.
    if config.qk_norm and isinstance(model, Transformer):
        yield f"qk_norm={config.qk_norm}"
    if config.value_dim not in (None, config.head_dim):
        yield f"value_dim={config.value_dim} beside heads of width {config.head_dim}"
    if config.activation not in _ACTIVATIONS:
        yield f"activation={config.activation!r}"


def _specs() -> Any:
    return _FORMAT.import_package("ctranslate2").specs


def _specify(model: Any, longest: int) -> Any:
    """Return CTranslate2's specification of the model, with weights and without tokens."""
    specs = _specs()
    decoder = _specify_decoder(model.decoder, longest)
    if isinstance(model, LanguageModel):
        return specs.TransformerDecoderModelSpec(decoder)
    return specs.TransformerSpec(_specify_encoder(model.encoder, longest), decoder)


def _shared_options(config: TokensConfig) -> dict[str, Any]:
    own_width = config.num_heads * config.head_dim != config.width
    return {
        "pre_norm": config.norm_first,
        "activation": getattr(_specs().Activation, _ACTIVATIONS[config.activation]),
        "ffn_glu": config.gated,
        "rms_norm": config.normalization == "rms",
        "layernorm_embedding": config.normalize_embeddings,
        "num_heads_kv": config.num_key_value_heads,
        "head_dim": config.head_dim if own_width else None,
        "qk_norm": config.qk_norm,
        # Feature i is paired with feature i + H / 2.
        "rotary_dim": 0 if config.position == "rotary" else None,
        "rotary_interleave": False,
    }


def _specify_encoder(encoder: Any, longest: int) -> Any:
    config = encoder.config
    spec = _specs().TransformerEncoderSpec(
        config.encoder_layers,
        config.num_heads,
        relative_attention_bias=config.position in ("alibi", "relative"),
        **_shared_options(config),
    )
    _fill_stack(spec, encoder)
    spec.embeddings[0].weight = _array(encoder.embedding.tokens.embeddings)
    _set_positions(spec, encoder, longest, bidirectional=True)
    return spec


def _specify_decoder(decoder: Any, longest: int) -> Any:
    config = decoder.config
    spec = _specs().TransformerDecoderSpec(
        config.decoder_layers,
        config.num_heads,
        with_encoder_attention=decoder.cross_attention,
        relative_attention_bias=config.position == "relative",
        alibi=config.position == "alibi",
        alibi_use_positive_positions=False,
        alignment_layer=decoder.alignment_layer,
        alignment_heads=config.num_heads,
        **_shared_options(config),
    )
    _fill_stack(spec, decoder)
    spec.embeddings.weight = _array(decoder.embedding.tokens.embeddings)
    _set_positions(spec, decoder, longest, bidirectional=False)
    if decoder.output_layer is None:
        spec.projection.weight = spec.embeddings.weight
    else:
        _set_linear(spec.projection, decoder.output_layer)
    return spec


def _fill_stack(spec: Any, stack: Any) -> None:
    """Set the layers, and the normalisations before and after them."""
    spec.scale_embeddings = stack.config.scale_embeddings
    if stack.embedding.norm is not None:
        _set_norm(spec.layernorm_embedding, stack.embedding.norm)
    for one, block in zip(spec.layer, stack.blocks, strict=True):
        if isinstance(block, TransformerDecoderLayer):
            _set_attention(one.self_attention, block.self_attention, block.self_attention_norm)
            if block.cross_attention:
                _set_attention(one.attention, block.encoded_attention, block.encoded_attention_norm)
        else:
            _set_attention(one.self_attention, block.attention, block.attention_norm)
        _set_norm(one.ffn.layer_norm, block.feed_forward_norm)
        _set_linear(one.ffn.linear_0, block.feed_forward.hidden_dense)
        if block.feed_forward.up_dense is not None:
            _set_linear(one.ffn.linear_0_noact, block.feed_forward.up_dense)
        _set_linear(one.ffn.linear_1, block.feed_forward.output_dense)
    if stack.final_norm is not None:
        _set_norm(spec.layer_norm, stack.final_norm)


def _set_attention(spec: Any, attention: Any, norm: Any) -> None:
    """Set the projections: all three in one table for self-attention, else key and value in one."""
    _set_norm(spec.layer_norm, norm)
    query, key, value = attention.query_dense, attention.key_dense, attention.value_dense
    if len(spec.linear) == 2:
        _set_heads(spec.linear[0], [query, key, value])
    else:
        _set_heads(spec.linear[0], [query])
        _set_heads(spec.linear[1], [key, value])
    output = attention.output_dense
    kernel = _array(output.kernel)  # (N, V, D)
    spec.linear[-1].weight = kernel.reshape(-1, kernel.shape[-1]).T
    if output.bias is not None:
        spec.linear[-1].bias = _array(output.bias)
    if hasattr(spec, "q_norm"):
        _set_norm(spec.q_norm, attention.query_norm)
        _set_norm(spec.k_norm, attention.key_norm)


def _set_heads(spec: Any, projections: Sequence[Any]) -> None:
    """Stack projections to heads, with kernels (D, heads, H), in one table (features, D)."""
    kernels = [_array(one.kernel) for one in projections]
    spec.weight = np.concatenate([kernel.reshape(len(kernel), -1).T for kernel in kernels])
    if projections[0].bias is not None:
        spec.bias = np.concatenate([_array(one.bias).reshape(-1) for one in projections])


def _set_linear(spec: Any, dense: Any) -> None:
    spec.weight = _array(dense.kernel).T
    if dense.bias is not None:
        spec.bias = _array(dense.bias)


def _set_norm(spec: Any, norm: Any) -> None:
    if hasattr(spec, "beta"):
        spec.gamma, spec.beta = _array(norm.gamma), _array(norm.beta)
    else:
        spec.gamma = _array(norm.scale)


def _set_positions(spec: Any, stack: Any, longest: int, bidirectional: bool) -> None:
    """Set the table of position vectors or of biases; rotary positions need none."""
    config, embedding = stack.config, stack.embedding
    if config.position == "learned":
        spec.position_encodings.encodings = _array(embedding.positions.embeddings)
    elif config.position == "sinusoidal":
        # CTranslate2's own table has all sines before all cosines, and other wavelengths.
        table = sinusoidal_positions(np.arange(longest), config.width)
        spec.position_encodings.encodings = _array(table)
    elif config.position == "relative":
        table, furthest = _array(embedding.bias.embeddings), embedding.bias.max_distance

        def learned(positions: NDArray[np.int32]) -> _Array:
            buckets = relative_position_buckets(
                positions,
                bidirectional=bidirectional,
                num_buckets=len(table),
                max_distance=furthest,
            )
            return table[keras.ops.convert_to_numpy(buckets)]

        _set_bias(spec, learned, furthest, bidirectional)
    elif config.position == "alibi" and bidirectional:
        slopes = _array(alibi_slopes(config.num_heads))
        _set_bias(spec, lambda positions: -abs(positions)[:, None] * slopes, longest, True)


def _set_bias(
    spec: Any, bias: Callable[[NDArray[np.int32]], _Array], furthest: int, bidirectional: bool
) -> None:
    """Set a bias by distance as a table of T5's buckets, with a bucket for each distance below `furthest`.

    `bias` maps relative positions (P,), key minus query, to biases (P, N). The other half of the buckets holds larger
    distances, with the bias of `furthest`. So no bucket depends on a logarithm, which CTranslate2 would round in
    another way.
    """
    distances = np.minimum(np.arange(2 * furthest), furthest).astype(np.int32)
    tables = [bias(-distances), bias(distances)] if bidirectional else [bias(-distances)]
    for layer in spec.layer:
        layer.self_attention.relative_attention_bias = np.concatenate(tables).astype(np.float32)
        layer.self_attention.relative_attention_max_distance = np.int32(2 * furthest)


def _name_tokens(
    specification: Any,
    model: Any,
    vocabularies: dict[str, Sequence[str] | None],
    longest: int,
) -> None:
    """Set the vocabularies, and the special tokens of config.json."""
    config = model.config
    alone = isinstance(model, LanguageModel)
    sizes = {} if alone else {"source": config.source_vocabulary_size}
    sizes["target"] = config.target_vocabulary_size
    named = {side: _checked_tokens(side, vocabularies[side], size) for side, size in sizes.items()}
    target = named["target"]
    unknown = _UNKNOWN if all(_UNKNOWN in one for one in named.values()) else target[config.pad_id]
    if any(unknown not in one for one in named.values()):
        raise ExportError(
            f"`source_tokens` and `target_tokens` must both have {_UNKNOWN!r}, or call padding alike. "
            f"Received: no {unknown!r} in `source_tokens`"
        )
    if alone:
        specification.register_vocabulary(target)
    else:
        specification.register_source_vocabulary(named["source"])
        specification.register_target_vocabulary(target)
    attributes = {
        "bos_token": target[config.start_id],
        "eos_token": target[config.end_id],
        "unk_token": unknown,
        "layer_norm_epsilon": model.decoder.blocks[0].norm_epsilon,
        # For runtime.py, which keeps padding from being decoded, as heed does.
        "pad_token": target[config.pad_id],
        "pad_id": config.pad_id,
    }
    if not alone:
        attributes["decoder_start_token"] = target[config.start_id]
        bound = {"learned": config.max_length, "sinusoidal": longest, "alibi": longest}
        attributes["longest_source"] = bound.get(config.position)
    for name, value in attributes.items():
        specification.config.add_attribute(name, value)


def _checked_tokens(side: str, tokens: Sequence[str] | None, size: int) -> list[str]:
    tokens = [str(i) for i in range(size)] if tokens is None else list(tokens)
    if len(set(tokens)) != size or len(tokens) != size:
        raise ExportError(
            f"`{side}_tokens` must be {size} different texts, one for each id. "
            f"Received: {len(tokens)}, of them {len(set(tokens))} different"
        )
    return tokens


def _round_to_bfloat16(specification: Any) -> None:
    import tensorflow as tf

    for variable in specification.variables().values():
        # A text is an alias of another variable.
        table = not isinstance(variable, str) and not variable.is_scalar()
        if table and variable.dtype == "float32":
            variable.array = variable.array.astype(tf.bfloat16.as_numpy_dtype)


def _array(weight: Any) -> _Array:
    return np.asarray(keras.ops.convert_to_numpy(weight), np.float32)
