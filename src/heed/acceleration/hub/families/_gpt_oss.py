"""GPT-OSS: sinks, YaRN, every second layer with a window, experts with clipped gates."""

from __future__ import annotations

from typing import Any

import keras

from heed.acceleration.hub import parts
from heed.acceleration.hub.families._experts import columns, experts
from heed.acceleration.hub.parts import Description, Rotations
from heed.acceleration.hub.recognition import (
    require,
    require_equal,
    require_float32,
    require_keras,
)
from heed.ops.core.description import Computed, DecoderAttention, DecoderLayer, Dense, Norm

_OSS = "models.gpt_oss.gpt_oss"


def describe_gpt_oss(backbone: Any) -> Description:
    """Return the description of a GPT-OSS."""
    rotations, layers = Rotations(), backbone.transformer_layers
    sizes = parts.same([_sizes(layer) for layer in layers], "heads")
    return parts.describe(
        backbone,
        sizes,
        [_layer(layer, rotations) for layer in layers],
        _norm(backbone.layer_norm),
        rotations=rotations,
        rotary_dim=layers[0].self_attention_layer._rotary_dim or None,
    )


def _norm(layer: Any) -> Norm:
    return parts.rms_norm(layer, f"{_OSS}_layer_norm.GptOssLayerNormalization")


def _sizes(layer: Any) -> tuple[Any, ...]:
    require_float32(require(layer, f"{_OSS}_decoder.GptOssTransformerDecoder"))
    attention = require(layer.self_attention_layer, f"{_OSS}_attention.GptOssAttention")
    width = attention._head_dim
    return attention.num_query_heads, attention.num_key_value_heads, width, width


def _layer(layer: Any, rotations: Rotations) -> DecoderLayer:
    require_equal(layer, output_router_logits=False)
    block = require(layer.sparse_moe_block, f"{_OSS}_decoder.GptOssSparseMoeBlock")
    router = require(block.router, f"{_OSS}_decoder.GptOssTopKRouter")
    own = require(block.experts, f"{_OSS}_decoder.GptOssExperts")
    for one in (block, router, own):
        require_float32(one)
    require_equal(own, alpha=1.702)

    def half(begin: int) -> Dense:
        weights = (own.gate_up_proj, own.gate_up_proj_bias)
        kernel, bias = (Computed(columns, (x,), (begin, None, 2)) for x in weights)
        return Dense(kernel, bias)

    return DecoderLayer(
        norm_first=True,
        activation="quick_gelu",
        self_norm=_norm(layer.input_layernorm),
        self_attention=_attention(layer.self_attention_layer, rotations),
        feed_forward_norm=_norm(layer.post_attention_layernorm),
        hidden=half(0),
        up=half(1),
        back=Dense(own.down_proj, own.down_proj_bias),
        # A softmax of the chosen scores is their part of the softmax of all.
        experts=experts(router, router.top_k, router.router_dense, True),
        gate_limit=parts.cap(own.limit),
        up_offset=1.0,
    )


def _attention(attention: Any, rotations: Rotations) -> DecoderAttention:
    require_float32(attention)
    require_keras(attention.dropout_layer, keras.layers.Dropout)
    require_equal(
        attention, _dot_product_equation="bquh,bkuh->buqk", _combine_equation="buqk,bkuh->bquh"
    )
    rotation = parts.rotation(attention.rotary_embedding_layer, attention._rotary_dim)
    # The key at i - window is seen too; 0 and less are no window.
    size = attention.sliding_window
    window = parts.window(size + 1) if size is not None and size > 0 else None
    return parts.attention_of(
        attention,
        scale=float(attention._inv_norm_factor),
        sinks=attention.sinks,
        sliding_window=window,
        rotation=rotations.number(rotation),
    )
