"""Llama, Llama 3 and Mistral: root-mean-square norms, rotated grouped heads, SwiGLU."""

from __future__ import annotations

import functools
from typing import Any

import keras

from heed.acceleration.hub import parts
from heed.acceleration.hub.parts import Description, Rotation, Rotations
from heed.acceleration.hub.recognition import (
    LeftToKerasError,
    require,
    require_equal,
    require_float32,
    require_keras,
)
from heed.layers.overrides import is_replaceable
from heed.ops.core.description import DecoderAttention, DecoderLayer, DecoderStack, Norm

_LLAMA, _MISTRAL = "models.llama.llama", "models.mistral.mistral"
_LLAMA_ROTARY = (
    *("max_wavelength", "position_scaling_factor", "frequency_adjustment_factor"),
    *("low_freq_factor", "high_freq_factor", "pretraining_sequence_length"),
)


def describe_llama(backbone: Any) -> Description:
    """Return the description of a Llama."""
    norm = functools.partial(parts.rms_norm, name=f"{_LLAMA}_layernorm.LlamaLayerNorm")

    def attention(layer: Any, rotations: Rotations) -> tuple[dict[str, int], DecoderAttention]:
        require_float32(require(layer, f"{_LLAMA}_attention.LlamaAttention"))
        width = layer._query_dense.kernel.shape[-1]
        rotary = parts.rotation(
            layer.rotary_embedding_layer,
            f"{_LLAMA}_rotary_embedding.LlamaRotaryEmbedding",
            width,
            _LLAMA_ROTARY,
        )
        return grouped(layer, layer.num_query_heads, layer.num_key_value_heads, rotary, rotations)

    return describe_swiglu(backbone, f"{_LLAMA}_decoder.LlamaTransformerDecoder", attention, norm)


def describe_mistral(backbone: Any) -> Description:
    """Return the description of a Mistral."""
    norm = functools.partial(
        parts.rms_norm, name=f"{_MISTRAL}_layer_norm.MistralLayerNormalization"
    )

    def attention(layer: Any, rotations: Rotations) -> tuple[dict[str, int], DecoderAttention]:
        require_float32(require(layer, f"{_MISTRAL}_attention.CachedMistralAttention"))
        width = layer._query_dense.kernel.shape[-1]
        rotary = parts.rotation(layer.rotary_embedding_layer, parts.ROTARY, width, parts.ROTARY_KEY)
        return grouped(layer, layer._num_query_heads, layer._num_key_value_heads, rotary, rotations)

    return describe_swiglu(
        backbone,
        f"{_MISTRAL}_transformer_decoder.MistralTransformerDecoder",
        attention,
        norm,
        lambda layer: window(layer.sliding_window),
    )


def window(size: Any) -> dict[str, int]:
    """Return the option of a sliding window, which a model may lack."""
    if size is None:
        return {}
    if type(size) is not int or size < 1:
        raise LeftToKerasError(f"the model has a sliding window of {size!r}")
    return {"sliding_window": min(size, 2**20)}


def grouped(
    attention: Any,
    heads: int,
    kv_heads: int,
    rotary: Rotation | None,
    rotations: Rotations,
    **options: Any,
) -> tuple[dict[str, int], DecoderAttention]:
    """Return the sizes and the description of an attention with `_query_dense` and so on, and the usual names."""
    require_keras(attention._softmax, keras.layers.Softmax)
    if not is_replaceable(attention._softmax, keras.layers.Softmax):
        raise LeftToKerasError(f"{attention.name} has a softmax of its own")
    require_equal(attention._softmax, axis=-1)
    require_equal(
        attention,
        _dot_product_equation="bquh,bkuh->buqk",
        _combine_equation="buqk,bkuh->bquh",
    )
    width, value_width = (
        x.kernel.shape[-1] for x in (attention._query_dense, attention._value_dense)
    )
    sizes = {
        "heads": int(heads),
        "kv_heads": int(kv_heads),
        "head_dim": int(width),
        "value_dim": int(value_width),
    }
    given: dict[str, Any] = {
        name: parts.dense(getattr(attention, f"_{name}_dense"))
        for name in ("query", "key", "value", "output")
    }
    number = None if rotary is None else rotations.number(rotary)
    options = {"scale": float(attention._inv_norm_factor), "rotation": number, **options}
    return sizes, DecoderAttention(**{**given, **options})


def describe_swiglu(
    backbone: Any,
    name: str,
    describe_attention: Any,
    norm: Any,
    options: Any = lambda layer: {},
) -> Description:
    """Return the description of a model of layers like Llama's.

    Args:
        backbone: of the model.
        name: of the class of its layers.
        describe_attention: returns the sizes and the description of a layer's attention.
        norm: returns the description of a normalisation.
        options: returns further options of a layer's attention.
    """
    rotations = Rotations()

    def describe_layer(layer: Any) -> tuple[dict[str, int], DecoderLayer]:
        require_float32(require(layer, name))
        require_keras(layer._self_attention_dropout, keras.layers.Dropout)
        if parts.activation_name(layer.activation) != "silu":
            raise LeftToKerasError(f"{layer.name} has another activation than silu")
        sizes, attention = describe_attention(layer._self_attention_layer, rotations)
        return sizes, DecoderLayer(
            norm_first=True,
            activation="silu",
            self_norm=norm(layer._self_attention_layernorm),
            self_attention=with_options(attention, **options(layer)),
            feed_forward_norm=norm(layer._feedforward_layernorm),
            hidden=parts.dense(layer._feedforward_gate_dense),
            up=parts.dense(layer._feedforward_intermediate_dense),
            back=parts.dense(layer._feedforward_output_dense),
        )

    layers = [describe_layer(x) for x in backbone.transformer_layers]
    return finish(backbone.token_embedding, layers, norm(backbone.layer_norm), rotations)


def with_options(attention: DecoderAttention, **options: Any) -> DecoderAttention:
    """Return an attention with other options."""
    from dataclasses import replace

    return replace(attention, **options)


def finish(
    embedding: Any,
    layers: list[tuple[dict[str, int], DecoderLayer]],
    final_norm: Norm,
    rotations: Rotations,
    scale: float = 1.0,
    **options: Any,
) -> Description:
    """Return the description of a model without learned positions."""
    stack = functools.partial(
        DecoderStack,
        **parts.same_sizes([sizes for sizes, _ in layers], "heads"),
        embedding_norm=None,
        final_norm=final_norm,
        layers=tuple(layer for _, layer in layers),
        weights="float32",
        **options,
    )
    return Description(
        parts.add_embedding(stack, embedding, scale), rotations=tuple(rotations.found)
    )
