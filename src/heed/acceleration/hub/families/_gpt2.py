"""GPT-2 and OPT: learned positions and `keras_hub.layers.TransformerDecoder`."""

from __future__ import annotations

import functools
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
from heed.layers.overrides import MASKS_AND_SOFTMAX, find_override, is_replaceable
from heed.ops.core.description import DecoderAttention, DecoderLayer, DecoderStack

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
    layers = [_layer(x, activation) for x in backbone.transformer_layers]
    sizes = parts.same_sizes([size for size, _ in layers], "heads")
    stack = functools.partial(
        DecoderStack,
        **sizes,
        embedding_norm=None,
        final_norm=parts.norm(backbone.layer_norm),
        layers=tuple(layer for _, layer in layers),
        weights="float32",
    )
    return Description(
        parts.add_embedding(stack, embedding),
        table=positions.position_embeddings,
        longest=positions.sequence_length,
    )


def _layer(layer: Any, activation: str) -> tuple[dict[str, int], DecoderLayer]:
    require_float32(require(layer, f"{_LAYERS}.transformer_decoder.TransformerDecoder"))
    require_equal(layer, normalize_first=True, _cross_attention_layer=None)
    for dropout in (layer._self_attention_dropout, layer._feedforward_dropout):
        require_keras(dropout, keras.layers.Dropout)
    sizes, attention = _attention(layer._self_attention_layer)
    return sizes, DecoderLayer(
        norm_first=True,
        activation=activation,
        self_norm=parts.norm(layer._self_attention_layer_norm),
        self_attention=attention,
        feed_forward_norm=parts.norm(layer._feedforward_layer_norm),
        hidden=parts.dense(layer._feedforward_intermediate_dense, activation),
        back=parts.dense(layer._feedforward_output_dense),
    )


def _attention(attention: Any) -> tuple[dict[str, int], DecoderAttention]:
    require_float32(
        require(attention, f"{_LAYERS}.cached_multi_head_attention.CachedMultiHeadAttention")
    )
    methods = ("__call__", "_compute_attention", *MASKS_AND_SOFTMAX)
    if reason := find_override(attention, keras.layers.MultiHeadAttention, methods):
        raise LeftToKerasError(reason)
    require_equal(attention, _attention_axes=(1,), _output_shape=None, _sliding_window=None)
    require_equal(attention, _use_gate=False)
    if not is_replaceable(attention._softmax, keras.layers.Softmax):
        raise LeftToKerasError(f"{attention.name} has a softmax of its own")
    heads = int(attention._num_heads)
    sizes = {
        "heads": heads,
        "kv_heads": heads,
        "head_dim": int(attention._key_dim),
        "value_dim": int(attention._value_dim),
    }
    return sizes, DecoderAttention(
        query=parts.dense(attention._query_dense),
        key=parts.dense(attention._key_dense),
        value=parts.dense(attention._value_dense),
        output=parts.dense(attention._output_dense),
        scale=float(attention._inverse_sqrt_key_dim),
    )
