"""BLOOM and Falcon: scores fall with the distance of their keys."""

from __future__ import annotations

from typing import Any

import keras

from heed.acceleration.hub import parts
from heed.acceleration.hub.parts import Description
from heed.acceleration.hub.recognition import require, require_float32, require_keras
from heed.ops.core.description import DecoderAttention, DecoderLayer

_BLOOM, _FALCON = "models.bloom.bloom", "models.falcon.falcon"


def describe_bloom(backbone: Any) -> Description:
    """Return the description of a BLOOM."""
    layers = backbone.transformer_layers
    for layer in layers:
        require_float32(require(layer, f"{_BLOOM}_decoder.BloomDecoder"))
        attention = require(layer._self_attention_layer, f"{_BLOOM}_attention.BloomAttention")
        require_float32(require(attention._alibi_layer, "layers.modeling.alibi_bias.AlibiBias"))
    return parts.describe(
        backbone,
        parts.same([_sizes(x._self_attention_layer) for x in layers], "heads"),
        [_bloom_layer(x) for x in layers],
        parts.norm(backbone.layer_norm),
        embedding_norm=parts.norm(backbone.embeddings_layer_norm),
        slopes=parts.same([_bloom_slopes(x._self_attention_layer) for x in layers], "slopes"),
    )


def describe_falcon(backbone: Any) -> Description:
    """Return the description of a Falcon."""
    layers = backbone.transformer_layers
    for layer in layers:
        require_float32(require(layer, f"{_FALCON}_transformer_decoder.FalconTransformerDecoder"))
        require(layer.attention_layer, f"{_FALCON}_attention.FalconAttention")
    return parts.describe(
        backbone,
        parts.same([_sizes(x.attention_layer) for x in layers], "heads"),
        [_falcon_layer(x) for x in layers],
        parts.norm(backbone.final_layernorm),
        slopes=parts.same([_falcon_slopes(x) for x in layers], "slopes"),
    )


def _sizes(attention: Any) -> tuple[Any, ...]:
    return attention.num_heads, attention.num_heads, attention.head_dim, attention.head_dim


def _bloom_slopes(attention: Any) -> tuple[float, ...]:
    return tuple(map(float, attention._alibi_layer._get_slopes(attention.num_heads)))


def _falcon_slopes(layer: Any) -> tuple[float, ...]:
    """Return the slopes times the scale, by which KerasHub multiplies the sum of scores and bias."""
    scale = layer.attention_layer.inv_norm_factor
    return tuple(float(x) * scale for x in layer._get_slopes(layer.num_attention_heads))


def _bloom_layer(layer: Any) -> DecoderLayer:
    require_keras(layer._dropout_layer, keras.layers.Dropout)
    attention = layer._self_attention_layer
    require_keras(attention._dropout_layer, keras.layers.Dropout)
    projections = (attention._query_dense, attention._key_dense, attention._value_dense)
    return DecoderLayer(
        norm_first=True,
        activation="gelu_tanh",
        self_norm=parts.norm(layer._pre_attention_layernorm),
        self_attention=_attention(
            attention, attention._softmax, *projections, attention._output_dense
        ),
        feed_forward_norm=parts.norm(layer._post_attention_layernorm),
        hidden=parts.dense(layer._mlp_intermediate_dense),
        back=parts.dense(layer._mlp_output_dense),
    )


def _falcon_layer(layer: Any) -> DecoderLayer:
    attention = layer.attention_layer
    dropouts = (layer.attention_dropout, layer.feedforward_dropout, attention.attention_dropout)
    for dropout in dropouts:
        require_keras(dropout, keras.layers.Dropout)
    projections = (attention.query_dense, attention.key_dense, attention.value_dense)
    return DecoderLayer(
        norm_first=True,
        activation="gelu",
        self_norm=parts.norm(layer.input_layernorm),
        self_attention=_attention(
            attention, attention.softmax, *projections, attention.output_dense
        ),
        feed_forward_norm=parts.norm(layer.post_attention_layernorm),
        hidden=parts.dense(layer.dense_h_to_4h, "gelu"),
        back=parts.dense(layer.dense_4h_to_h),
    )


def _attention(attention: Any, softmax: Any, *layers: Any) -> DecoderAttention:
    require_float32(attention)
    parts.require_softmax(softmax)
    heads = attention.num_heads
    return parts.attention(heads, heads, *layers, scale=float(attention.inv_norm_factor))
