"""Gemma, Gemma 2 and Gemma 3 for text: norms by 1 + scale, before and after parts, GeGLU, bounded scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import keras

from heed.acceleration.hub import parts
from heed.acceleration.hub.parts import Description, Rotations
from heed.acceleration.hub.recognition import (
    LeftToKerasError,
    require,
    require_equal,
    require_float32,
    require_keras,
)
from heed.ops.core.description import DecoderAttention, DecoderLayer, Norm


@dataclass(frozen=True)
class _Family:
    """The names of the classes of a family."""

    decoder: str
    attention: str
    norm: str

    def describe(self, backbone: Any, **options: Any) -> Description:
        """Return the description of a model."""
        rotations, layers = Rotations(), backbone.transformer_layers
        width = backbone.hidden_dim
        if type(width) is not int:
            raise LeftToKerasError(f"the model has hidden_dim={width!r}")
        return parts.describe(
            backbone,
            parts.same([self._sizes(layer) for layer in layers], "heads"),
            [self._layer(layer, rotations) for layer in layers],
            self._norm(backbone.layer_norm),
            scale=math.sqrt(width),
            rotations=rotations,
            **options,
        )

    def _norm(self, layer: Any) -> Norm:
        return parts.rms_norm(layer, self.norm, plus_one=True)

    def _sizes(self, layer: Any) -> tuple[Any, ...]:
        require_float32(require(layer, self.decoder))
        attention = require(layer.attention, self.attention)
        heads = attention.num_query_heads, attention.num_key_value_heads
        return *heads, attention.head_dim, attention.head_dim

    def _layer(self, layer: Any, rotations: Rotations) -> DecoderLayer:
        post: dict[str, Any] = {}
        if layer.use_post_attention_norm:
            post["self_post_norm"] = self._norm(layer.post_attention_norm)
        if layer.use_post_ffw_norm:
            post["feed_forward_post_norm"] = self._norm(layer.post_ffw_norm)
        if layer.dropout:
            require_keras(layer.attention_dropout, keras.layers.Dropout)
        return DecoderLayer(
            norm_first=True,
            activation="gelu_tanh",
            self_norm=self._norm(layer.pre_attention_norm),
            self_attention=self._attention(layer.attention, rotations),
            feed_forward_norm=self._norm(layer.pre_ffw_norm),
            hidden=parts.dense(layer.gating_ffw),
            up=parts.dense(layer.gating_ffw_2),
            back=parts.dense(layer.ffw_linear),
            **post,
        )

    def _attention(self, attention: Any, rotations: Rotations) -> DecoderAttention:
        require_float32(attention)
        parts.require_softmax(attention.softmax)
        require_keras(attention.dropout_layer, keras.layers.Dropout)
        rotation = parts.rotation(attention.rope_layer, attention.head_dim)
        width = attention.head_dim
        if not attention.query_head_dim_normalize:
            width = attention.hidden_dim // attention.num_query_heads
        window = None
        if attention.use_sliding_window_attention:
            window = parts.window(attention.sliding_window_size)
        norms: dict[str, Any] = {}
        if getattr(attention, "use_query_key_norm", False):
            norms = {
                "query_norm": self._norm(attention.query_norm),
                "key_norm": self._norm(attention.key_norm),
            }
        return parts.attention_of(
            attention,
            scale=1 / math.sqrt(width),
            soft_cap=parts.cap(attention.logit_soft_cap),
            sliding_window=window,
            rotation=rotations.number(rotation),
            **norms,
        )


describe_gemma = _Family(
    "models.gemma.gemma_decoder_block.GemmaDecoderBlock",
    "models.gemma.gemma_attention.CachedGemmaAttention",
    "models.gemma.rms_normalization.RMSNormalization",
).describe

_GEMMA_3 = _Family(
    "models.gemma3.gemma3_decoder_block.Gemma3DecoderBlock",
    "models.gemma3.gemma3_attention.CachedGemma3Attention",
    "models.gemma3.gemma3_layers.RMSNormalization",
)
_IMAGES = frozenset({"images", "vision_mask", "vision_indices"})


def describe_gemma3(backbone: Any) -> Description:
    """Return the description of a Gemma 3 that reads text alone."""
    if not backbone.text_only_model:
        raise LeftToKerasError("the engine reads no images")
    require_equal(backbone, use_bidirectional_attention=False, is_embedding_model=False)
    for layer in backbone.transformer_layers:
        require_equal(layer, use_bidirectional_attention=False)
    return _GEMMA_3.describe(backbone, ignored=_IMAGES, returned=("images",))
