"""GPT-NeoX: attention and feed-forward part side by side, and a part of the features rotated."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from heed.acceleration.hub import parts
from heed.acceleration.hub.parts import Description, Rotations
from heed.acceleration.hub.recognition import (
    LeftToKerasError,
    require,
    require_float32,
    require_keras,
)
from heed.ops.core.description import Computed, DecoderAttention, DecoderLayer, Dense, Integers

_NEOX = "models.gpt_neo_x.gpt_neo_x"


def describe_gpt_neox(backbone: Any) -> Description:
    """Return the description of a GPT-NeoX.

    Its queries are rotated by their positions, as they are in training. KerasHub's `generate` rotates each query after
    the prompt as if it stood at position 0.
    """
    require_keras(backbone.embeddings_dropout, keras.layers.Dropout)
    rotations, layers = Rotations(), backbone.transformer_layers
    sizes = parts.same([_sizes(layer) for layer in layers], "heads")
    rotary_dim = parts.same(
        [layer._self_attention_layer.rotary_dim for layer in layers], "rotations"
    )
    return parts.describe(
        backbone,
        sizes,
        [_layer(layer, rotations) for layer in layers],
        parts.norm(backbone.layer_norm),
        rotations=rotations,
        rotary_dim=rotary_dim or None,
    )


def _sizes(layer: Any) -> tuple[Any, ...]:
    require_float32(require(layer, f"{_NEOX}_decoder.GPTNeoXDecoder"))
    attention = require(layer._self_attention_layer, f"{_NEOX}_attention.GPTNeoXAttention")
    width = attention.attn_head_size
    return attention.num_heads, attention.num_heads, width, width


def _layer(layer: Any, rotations: Rotations) -> DecoderLayer:
    require_keras(layer._self_attention_dropout, keras.layers.Dropout)
    activation = parts.activation_name(layer._feedforward_intermediate_dense.activation)
    return DecoderLayer(
        norm_first=True,
        parallel=True,
        activation=activation,
        self_norm=parts.norm(layer._self_attention_layer_norm),
        self_attention=_attention(layer._self_attention_layer, rotations),
        feed_forward_norm=parts.norm(layer._feedforward_layer_norm),
        hidden=parts.dense(layer._feedforward_intermediate_dense, activation),
        back=parts.dense(layer._feedforward_output_dense),
    )


def _attention(attention: Any, rotations: Rotations) -> DecoderAttention:
    require_float32(attention)
    parts.require_softmax(attention._softmax)
    require_keras(attention._attn_dropout_layer, keras.layers.Dropout)
    number = None
    if attention.rotary_dim:
        rotation = parts.rotation(attention.rotary_embedding_layer, attention.rotary_dim)
        number = rotations.number(rotation)
    width = attention.attn_head_size
    query, key, value = (
        _third(attention, begin, begin + width) for begin in range(0, 3 * width, width)
    )
    return DecoderAttention(
        query=query,
        key=key,
        value=value,
        output=parts.dense(attention._output_dense),
        scale=float(attention._inv_norm_factor),
        rotation=number,
    )


def _third(attention: Any, begin: int, end: int) -> Dense:
    """Return the columns of each head that make queries, keys or values."""
    both = parts.dense(attention._qkv_dense)
    if isinstance(both.kernel, (Computed, Integers)):
        raise LeftToKerasError(f"{attention._qkv_dense.name} is quantised or has LoRA weights")
    columns = ((begin, end),)
    return Dense(Computed(_cut, (both.kernel,), columns), Computed(_cut, (both.bias,), columns))


def _cut(weight: np.ndarray, columns: tuple[int, int]) -> np.ndarray:
    return weight[..., slice(*columns)]
