"""A Transformer as a CTranslate2 model folder, for its C++ and Python servers on CPUs and GPUs.

CTranslate2 has no graph: its models are tables with agreed names, and what it cannot say of a model is refused here.
`write` fills a folder with what `ctranslate2.Translator` (of a language model `ctranslate2.Generator`) opens:
model.bin, config.json and the vocabularies. In these the tokens stand in the order of heed's ids, one for each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from heed._install import how_to_install
from heed._numbers import check_integer
from heed.export.errors import ExportError
from heed.export.formats import FORMATS, ExportJob
from heed.layers import TransformerDecoderLayer
from heed.models import LanguageModel, Transformer, TransformerEncoder
from heed.models.config import TokensConfig
from heed.ops import alibi_slopes, relative_position_buckets, sinusoidal_positions

QUANTIZATIONS = FORMATS["ctranslate2"].precisions
_OTHERS = "saved_model, litert and onnx can"
_UNKNOWN = "<unk>"
# What Keras calls an activation, and what CTranslate2 does.
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
    *("feed_forward_width", "activation", "gated", "norm_first", "normalization"),
}
_Array = NDArray[np.float32]


def write_artefact(job: ExportJob, folder: Path) -> list[str]:
    """Writes the model folder, whose tokens have the names of a run's. See `ExportFormat`."""
    sides = () if job.shipment is None else ("source", "target")
    tokens = {f"{side}_tokens": each_once(job.shipment.tokens[side]) for side in sides}
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
    """Writes a model folder of CTranslate2.

    Args:
        model: a `Transformer`, or a `LanguageModel`.
        folder: an existing empty one.
        quantization: how weights are stored: "float32", "float16", "bfloat16", or "int8" (whole numbers and a float32
            factor for each output). In which type they are computed with is chosen when they are loaded.
        longest: how many tokens of a source or target have a place: the length of the table of sinusoidal
            positions, and the distance up to which ALiBi holds in an encoder. Learned positions have their own length,
            rotary and relative ones none.
        source_tokens, target_tokens: what the ids are called, each once, see `each_once`. A language model has
            `target_tokens` alone. Default: "0", "1", ...

    Raises:
        ExportError: for an option or a model that CTranslate2 does not have, with its name and value; if vocabularies
            do not fit; without the ctranslate2 package.
        OSError: if a file cannot be written.
    """
    if quantization not in QUANTIZATIONS:
        known = ", ".join(map(repr, QUANTIZATIONS))
        raise ExportError(f"`quantization` must be one of {known}. Received: {quantization!r}")
    longest = check_integer("longest", longest, least=1)
    vocabularies = {"source": source_tokens, "target": target_tokens}
    _check(model)
    specification = _specification(model, longest)
    _name_tokens(specification, model, vocabularies, longest)
    specification.validate()
    # What bfloat16 is, the package knows of PyTorch alone.
    specification.optimize("float32" if quantization == "bfloat16" else quantization)
    if quantization == "bfloat16":
        _to_bfloat16(specification)
    specification.save(str(folder))


def each_once(tokens: Sequence[str]) -> list[str]:
    """The tokens; where one stands again its id is behind it.

    >>> each_once(["a", "b", "a"])
    ['a', 'b', 'a<2>']
    """
    found: dict[str, None] = {}
    for number, token in enumerate(tokens):
        while token in found:
            token = f"{token}<{number}>"
        found[token] = None
    return list(found)


def _check(model: Any) -> None:
    """ExportError if CTranslate2 cannot say what the model is."""
    if not isinstance(model, (Transformer, LanguageModel)):
        raise ExportError(
            "CTranslate2 takes a heed.models.Transformer or a LanguageModel, no other model: "
            f"{_OTHERS}. Received: {type(model).__name__}"
        )
    if not model.built:
        model.build()
    if refused := list(_beyond(model)):
        raise ExportError(f"CTranslate2 has no form of {', '.join(refused)}: {_OTHERS}")


def _beyond(model: Any) -> Iterator[str]:
    """The options that cannot be said, with their values."""
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
    try:
        from ctranslate2 import specs
    except ImportError:
        raise ExportError(
            f"this needs the ctranslate2 library: {how_to_install('export')}"
        ) from None
    return specs


def _specification(model: Any, longest: int) -> Any:
    """The model as CTranslate2 describes it, with all weights, without tokens."""
    specs = _specs()
    decoder = _decoder(model.decoder, longest)
    if isinstance(model, LanguageModel):
        return specs.TransformerDecoderModelSpec(decoder)
    return specs.TransformerSpec(_encoder(model.encoder, longest), decoder)


def _shared_options(config: TokensConfig) -> dict[str, Any]:
    """What is said of an encoder and of a decoder alike."""
    own_width = config.num_heads * config.head_dim != config.width
    return {
        "pre_norm": config.norm_first,
        "activation": getattr(_specs().Activation, _ACTIVATIONS[config.activation]),
        "ffn_glu": config.gated,
        "rms_norm": config.normalization == "rms",
        "num_heads_kv": config.num_key_value_heads,
        "head_dim": config.head_dim if own_width else None,
        "qk_norm": config.qk_norm,
        # Features are paired with those half a head on.
        "rotary_dim": 0 if config.position == "rotary" else None,
        "rotary_interleave": False,
    }


def _encoder(encoder: Any, longest: int) -> Any:
    config = encoder.config
    spec = _specs().TransformerEncoderSpec(
        config.encoder_layers,
        config.num_heads,
        relative_attention_bias=config.position in ("alibi", "relative"),
        **_shared_options(config),
    )
    _fill_stack(spec, encoder)
    _set_embedding(spec.embeddings[0], encoder)
    _set_positions(spec, encoder, longest, bidirectional=True)
    return spec


def _decoder(decoder: Any, longest: int) -> Any:
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
    _set_embedding(spec.embeddings, decoder)
    _set_positions(spec, decoder, longest, bidirectional=False)
    if decoder.output_layer is None:
        spec.projection.weight = spec.embeddings.weight
    else:
        _set_linear(spec.projection, decoder.output_layer)
    return spec


def _fill_stack(spec: Any, stack: Any) -> None:
    """The layers and the normalisation after them."""
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
    """The projections: of self-attention all three in one table, else those of key and value."""
    _set_norm(spec.layer_norm, norm)
    query, read = [attention.query_dense], [attention.key_dense, attention.value_dense]
    if len(spec.linear) == 2:
        _set_heads(spec.linear[0], query + read)
    else:
        _set_heads(spec.linear[0], query)
        _set_heads(spec.linear[1], read)
    output = attention.output_dense
    kernel = _array(output.kernel)  # (N, V, D)
    spec.linear[-1].weight = kernel.reshape(-1, kernel.shape[-1]).T
    if output.bias is not None:
        spec.linear[-1].bias = _array(output.bias)
    if hasattr(spec, "q_norm"):
        _set_norm(spec.q_norm, attention.query_norm)
        _set_norm(spec.k_norm, attention.key_norm)


def _set_heads(spec: Any, projections: Sequence[Any]) -> None:
    """Projections to heads, kernels (D, heads, H), below each other in one table (all features, D)."""
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


def _set_embedding(spec: Any, stack: Any) -> None:
    spec.weight = _array(stack.embedding.tokens.embeddings)


def _set_positions(spec: Any, stack: Any, longest: int, bidirectional: bool) -> None:
    """Tables of vectors, which are added to the embeddings, or of biases; rotation needs none."""
    config, embedding = stack.config, stack.embedding
    if config.position == "learned":
        spec.position_encodings.encodings = _array(embedding.positions.embeddings)
    elif config.position == "sinusoidal":
        # CTranslate2's own has all sines before all cosines, and other wavelengths.
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
    """A bias by distance as a table of T5's buckets, in which each distance below `furthest` has one of its own.

    So no logarithm decides where a distance falls, which would be rounded otherwise than here. The other half of the
    buckets is for what is further away, and all of it counts as `furthest`.

    Args:
        spec: an encoder or decoder.
        bias: of relative positions (P,), key minus query, gives (P, N).
        furthest: a positive integer.
        bidirectional: whether there are keys after the query.
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
    """The vocabularies, and config.json, which says which tokens are special."""
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
    about = {
        "bos_token": target[config.start_id],
        "eos_token": target[config.end_id],
        "unk_token": unknown,
        "layer_norm_epsilon": model.decoder.blocks[0].norm_epsilon,
        # For runtime.py, which keeps them from being decoded, as heed does.
        "pad_token": target[config.pad_id],
        "pad_id": config.pad_id,
    }
    if not alone:
        about["decoder_start_token"] = target[config.start_id]
        bound = {"learned": config.max_length, "sinusoidal": longest, "alibi": longest}
        about["longest_source"] = bound.get(config.position)
    for name, value in about.items():
        specification.config.add_attribute(name, value)


def _checked_tokens(side: str, tokens: Sequence[str] | None, size: int) -> list[str]:
    """What the ids of one side are called."""
    tokens = [str(i) for i in range(size)] if tokens is None else list(tokens)
    if len(set(tokens)) != size or len(tokens) != size:
        raise ExportError(
            f"`{side}_tokens` must be {size} different texts, one for each id. "
            f"Received: {len(tokens)}, of them {len(set(tokens))} different"
        )
    return tokens


def _to_bfloat16(specification: Any) -> None:
    import tensorflow as tf

    for variable in specification.variables().values():
        # An alias is a text.
        table = not isinstance(variable, str) and not variable.is_scalar()
        if table and variable.dtype == "float32":
            variable.array = variable.array.astype(tf.bfloat16.as_numpy_dtype)


def _array(weight: Any) -> _Array:
    return np.asarray(keras.ops.convert_to_numpy(weight), np.float32)
