"""Gemma, Gemma 2 and Gemma 3 for text: norms by 1 + scale, before and after parts, GeGLU, bounded scores."""

from __future__ import annotations

import math
from typing import Any

import keras

from heed.acceleration.hub import parts
from heed.acceleration.hub.families._family import Family
from heed.acceleration.hub.parts import Rotation
from heed.acceleration.hub.recognition import LeftToKerasError, require_equal, require_keras
from heed.ops.core.description import Norm

_IMAGES = frozenset({"images", "vision_mask", "vision_indices"})


class Gemma(Family):
    """Gemma 2, too."""

    decoder = "models.gemma.gemma_decoder_block.GemmaDecoderBlock"
    attention = "models.gemma.gemma_attention.CachedGemmaAttention"
    norm_class: str = "models.gemma.rms_normalization.RMSNormalization"
    attention_name = "attention"
    norms = ("pre_attention_norm", "pre_ffw_norm")
    head_dim = "head_dim"

    def model_options(self, backbone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        width = backbone.hidden_dim
        if type(width) is not int:
            raise LeftToKerasError(f"the model has hidden_dim={width!r}")
        return {"embedding_scale": math.sqrt(width)}, {}

    def norm(self, layer: Any) -> Norm:
        return parts.rms_norm(layer, self.norm_class, plus_one=True)

    def feed_forward(self, layer: Any) -> dict[str, Any]:
        post: dict[str, Any] = {}
        if layer.use_post_attention_norm:
            post["self_post_norm"] = self.norm(layer.post_attention_norm)
        if layer.use_post_ffw_norm:
            post["feed_forward_post_norm"] = self.norm(layer.post_ffw_norm)
        if layer.dropout:
            require_keras(layer.attention_dropout, keras.layers.Dropout)
        return {
            "activation": "gelu_tanh",
            "hidden": parts.dense(layer.gating_ffw),
            "up": parts.dense(layer.gating_ffw_2),
            "back": parts.dense(layer.ffw_linear),
            **post,
        }

    def rotation(self, attention: Any) -> Rotation | None:
        return parts.rotation(attention.rope_layer, attention.head_dim)

    def window(self, layer: Any) -> Any:
        attention = layer.attention
        return attention.sliding_window_size if attention.use_sliding_window_attention else None

    def attention_options(self, attention: Any) -> dict[str, Any]:
        width = attention.head_dim
        if not attention.query_head_dim_normalize:
            width = attention.hidden_dim // attention.num_query_heads
        norms = {}
        if getattr(attention, "use_query_key_norm", False):
            norms = {
                "query_norm": self.norm(attention.query_norm),
                "key_norm": self.norm(attention.key_norm),
            }
        soft_cap = parts.cap(attention.logit_soft_cap)
        return {"scale": 1 / math.sqrt(width), "soft_cap": soft_cap, **norms}


class Gemma3(Gemma):
    """Reads text alone."""

    decoder = "models.gemma3.gemma3_decoder_block.Gemma3DecoderBlock"
    attention = "models.gemma3.gemma3_attention.CachedGemma3Attention"
    norm_class = "models.gemma3.gemma3_layers.RMSNormalization"

    def model_options(self, backbone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        if not backbone.text_only_model:
            raise LeftToKerasError("the engine reads no images")
        require_equal(backbone, use_bidirectional_attention=False, is_embedding_model=False)
        for layer in backbone.transformer_layers:
            require_equal(layer, use_bidirectional_attention=False)
        of_stack, _ = super().model_options(backbone)
        return of_stack, {"ignored": _IMAGES, "returned": ("images",)}
