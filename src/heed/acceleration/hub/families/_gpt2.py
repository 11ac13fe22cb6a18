"""GPT-2 and OPT: learned positions and `keras_hub.layers.TransformerDecoder`."""

from __future__ import annotations

from typing import Any

import keras

from heed.acceleration.hub import parts
from heed.acceleration.hub.parts import Description
from heed.acceleration.hub.recognition import (
    LeftToKerasError,
    require,
    require_equal,
    require_float32,
    require_keras,
)
from heed.layers.overrides import MASKS_AND_SOFTMAX, find_override, option
from heed.ops.core.description import DecoderAttention, DecoderLayer

_LAYERS = "layers.modeling"


def describe_gpt2(backbone: Any) -> Description:
    """Return the description of a GPT-2."""
    require_keras(backbone.embeddings_add, keras.layers.Add)
    require_float32(backbone.embeddings_add)
    require_keras(backbone.embeddings_dropout, keras.layers.Dropout)
    return _describe(backbone, backbone.token_embedding, backbone.position_embedding, "gelu_tanh")


def describe_opt(backbone: Any) -> Description:
    """Return the description of an OPT."""
    both = require(
        backbone.embeddings, f"{_LAYERS}.token_and_position_embedding.TokenAndPositionEmbedding"
    )
    require_float32(both)
    if both.token_embedding is not backbone.token_embedding:
        raise LeftToKerasError("the model embeds tokens by another table than its own")
    return _describe(backbone, both.token_embedding, both.position_embedding, "relu")


def _describe(backbone: Any, embedding: Any, positions: Any, activation: str) -> Description:
    require_float32(require(positions, f"{_LAYERS}.position_embedding.PositionEmbedding"))
    layers = backbone.transformer_layers
    return parts.describe(
        backbone,
        parts.same([_sizes(x._self_attention_layer) for x in layers], "heads"),
        (_layer(x, activation) for x in layers),
        parts.norm(backbone.layer_norm),
        embedding,
        table=positions.position_embeddings,
        longest=positions.sequence_length,
    )


def _layer(layer: Any, activation: str) -> DecoderLayer:
    require_float32(require(layer, f"{_LAYERS}.transformer_decoder.TransformerDecoder"))
    require_equal(layer, normalize_first=True, _cross_attention_layer=None)
    for dropout in (layer._self_attention_dropout, layer._feedforward_dropout):
        require_keras(dropout, keras.layers.Dropout)
    return DecoderLayer(
        norm_first=True,
        activation=activation,
        self_norm=parts.norm(layer._self_attention_layer_norm),
        self_attention=_attention(layer._self_attention_layer),
        feed_forward_norm=parts.norm(layer._feedforward_layer_norm),
        hidden=parts.dense(layer._feedforward_intermediate_dense, activation),
        back=parts.dense(layer._feedforward_output_dense),
    )


def _sizes(attention: Any) -> tuple[Any, ...]:
    require_float32(
        require(attention, f"{_LAYERS}.cached_multi_head_attention.CachedMultiHeadAttention")
    )
    heads = option(attention, "num_heads")
    return heads, heads, option(attention, "key_dim"), option(attention, "value_dim")


def _attention(attention: Any) -> DecoderAttention:
    methods = ("__call__", "_compute_attention", *MASKS_AND_SOFTMAX)
    if reason := find_override(attention, keras.layers.MultiHeadAttention, methods):
        raise LeftToKerasError(reason)
    require_equal(attention, _attention_axes=(1,), _output_shape=None, _sliding_window=None)
    require_equal(attention, _use_gate=False)
    parts.require_softmax(attention._softmax)
    return parts.attention(
        *2 * (option(attention, "num_heads"),),
        attention._query_dense,
        attention._key_dense,
        attention._value_dense,
        attention._output_dense,
        scale=float(attention._inverse_sqrt_key_dim),
    )
