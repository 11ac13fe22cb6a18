"""BLOOM and Falcon: scores fall with the distance of their keys."""

from __future__ import annotations

from typing import Any

from heed.acceleration.hub import parts
from heed.acceleration.hub.families._family import Family
from heed.acceleration.hub.recognition import require, require_float32


class Bloom(Family):
    decoder = "models.bloom.bloom_decoder.BloomDecoder"
    attention = "models.bloom.bloom_attention.BloomAttention"
    dropouts = ("dropout_layer",)
    norms = ("pre_attention_layernorm", "post_attention_layernorm")
    heads = ("num_heads", "num_heads")

    def model_options(self, backbone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        slopes = []
        for layer in backbone.transformer_layers:
            attention = layer._self_attention_layer
            alibi = require(attention._alibi_layer, "layers.modeling.alibi_bias.AlibiBias")
            require_float32(alibi)
            slopes.append(tuple(map(float, alibi._get_slopes(attention.num_heads))))
        norm = parts.norm(backbone.embeddings_layer_norm)
        return {"embedding_norm": norm}, {"slopes": parts.same(slopes, "slopes")}

    def feed_forward(self, layer: Any) -> dict[str, Any]:
        return {
            "activation": "gelu_tanh",
            "hidden": parts.dense(layer._mlp_intermediate_dense),
            "back": parts.dense(layer._mlp_output_dense),
        }


class Falcon(Family):
    decoder = "models.falcon.falcon_transformer_decoder.FalconTransformerDecoder"
    attention = "models.falcon.falcon_attention.FalconAttention"
    final_norm = "final_layernorm"
    attention_name = "attention_layer"
    dropouts = ("attention_dropout", "feedforward_dropout")
    norms = ("input_layernorm", "post_attention_layernorm")
    heads = ("num_heads", "num_heads")
    weights_dropout = "attention_dropout"

    def model_options(self, backbone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the slopes times the scale, by which KerasHub multiplies the sum of scores and bias."""
        slopes = [
            tuple(
                float(x) * layer.attention_layer.inv_norm_factor
                for x in layer._get_slopes(layer.num_attention_heads)
            )
            for layer in backbone.transformer_layers
        ]
        return {}, {"slopes": parts.same(slopes, "slopes")}

    def feed_forward(self, layer: Any) -> dict[str, Any]:
        return {
            "activation": "gelu",
            "hidden": parts.dense(layer.dense_h_to_4h, "gelu"),
            "back": parts.dense(layer.dense_4h_to_h),
        }
