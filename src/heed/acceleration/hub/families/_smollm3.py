"""SmolLM3: like Llama, with layers that are not rotated."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from heed.acceleration.hub import parts
from heed.acceleration.hub.parts import Description, Rotation, Rotations
from heed.acceleration.hub.recognition import (
    LeftToKerasError,
    require,
    require_equal,
    require_float32,
)
from heed.ops.core.description import DecoderAttention, DecoderLayer, Norm

_LAYERS = "models.smollm3.smollm3_layers"


def describe_smollm3(backbone: Any) -> Description:
    """Return the description of a SmolLM3."""
    rotations, layers = Rotations(), backbone.transformer_layers
    return parts.describe(
        backbone,
        parts.same([_sizes(layer) for layer in layers], "heads"),
        [_layer(layer, rotations) for layer in layers],
        _norm(backbone.norm),
        rotations=rotations,
    )


def _norm(layer: Any) -> Norm:
    if type(layer) is not keras.layers.RMSNormalization:
        raise LeftToKerasError(f"{layer.name} is no RMSNormalization of Keras")
    return parts.norm(layer)


def _sizes(layer: Any) -> tuple[Any, ...]:
    require_float32(require(layer, f"{_LAYERS}.SmolLM3DecoderLayer"))
    attention = require(layer.self_attn, f"{_LAYERS}.SmolLM3Attention")
    width = attention.head_dim
    return attention.num_attention_heads, attention.num_key_value_heads, width, width


def _layer(layer: Any, rotations: Rotations) -> DecoderLayer:
    mlp = require(layer.mlp, f"{_LAYERS}.SmolLM3MLP")
    require_float32(mlp)
    return DecoderLayer(
        norm_first=True,
        activation="silu",
        self_norm=_norm(layer.input_layernorm),
        self_attention=_attention(layer.self_attn, rotations),
        feed_forward_norm=_norm(layer.post_attention_layernorm),
        hidden=parts.dense(mlp.gate_proj),
        up=parts.dense(mlp.up_proj),
        back=parts.dense(mlp.down_proj),
    )


def _attention(attention: Any, rotations: Rotations) -> DecoderAttention:
    require_float32(attention)
    parts.require_softmax(attention._softmax)
    require_equal(
        attention, _dot_product_equation="bquh,bkuh->buqk", _combine_equation="buqk,bkuh->bquh"
    )
    number = rotations.number(_rotation(attention)) if attention.use_rope else None
    return DecoderAttention(
        query=parts.dense(attention.q_proj),
        key=parts.dense(attention.k_proj),
        value=parts.dense(attention.v_proj),
        output=parts.dense(attention.o_proj),
        scale=float(attention._inv_norm_factor),
        rotation=number,
    )


def _rotation(attention: Any) -> Rotation:
    name = f"{_LAYERS}.SmolLM3RotaryEmbedding"
    layer = require(attention.rotary_embedding, name)
    require_float32(layer)
    frequencies = ops.convert_to_numpy(layer.inv_freq)  # a weight
    half = len(frequencies)
    if 2 * half != attention.head_dim:
        raise LeftToKerasError(f"{layer.name} turns {2 * half} of {attention.head_dim} features")

    def table(length: int) -> np.ndarray:
        cosines, sines = layer(ops.zeros((1, length, 2 * half)))
        both = [ops.convert_to_numpy(x)[0, :, :half] for x in (cosines, sines)]
        return np.concatenate(both, axis=-1)

    return Rotation(layer, (name, layer.attention_scaling, *map(float, frequencies)), table)
