"""Mixtral, Qwen-MoE, Qwen 3 MoE and GPT-OSS: layers like Llama's, with mixtures of experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from heed.acceleration.hub import parts
from heed.acceleration.hub.families._family import swiglu
from heed.acceleration.hub.families._llama import Mistral, Qwen, Qwen3, Rotated
from heed.acceleration.hub.parts import Rotation
from heed.acceleration.hub.recognition import (
    LeftToKerasError,
    class_name,
    require,
    require_equal,
    require_float32,
)
from heed.ops.core.description import Computed, Dense, Experts, Norm


def _experts(block: Any, top_k: Any, router: Any, normalized: bool, **shared: Any) -> Experts:
    """Return the mixture of a block of KerasHub."""
    count = router.kernel.shape[-1]
    if type(top_k) is not int or not 1 <= top_k <= count:
        raise LeftToKerasError(f"{block.name} chooses {top_k!r} of {count} experts")
    return Experts(count, top_k, parts.dense(router), normalized, **shared)


def _bank(layer: Any, name: str) -> Any:
    """Return the experts of a block, of the class of this name, with SiLU."""
    require_float32(require(layer, name))
    if parts.activation_name(layer.activation) != "silu":
        raise LeftToKerasError(f"{layer.name} has another activation than silu")
    return layer


def _columns(weight: np.ndarray, begin: int | None, end: int | None, step: int) -> np.ndarray:
    """Return some of the outputs of a weight."""
    return weight[..., begin:end:step]


def _both(own: Any) -> dict[str, Any]:
    """Return the fields of experts that keep both halves of their gated part in one weight."""
    both = own._expert_feedforward_gate_dense
    half = both.shape[-1] // 2
    return {
        "activation": "silu",
        "hidden": Dense(Computed(_columns, (both,), (None, half, 1))),
        "up": Dense(Computed(_columns, (both,), (half, None, 1))),
        "back": Dense(own._expert_feedforward_output_dense),
    }


def _plain(block: Any, name: str) -> dict[str, Any]:
    require_float32(require(block, name))
    return swiglu(block)


class Mixtral(Mistral):
    decoder = "models.mixtral.mixtral_decoder.MixtralTransformerDecoder"
    attention = "models.mixtral.mixtral_attention.CachedMixtralAttention"
    norm_class = "models.mixtral.mixtral_layer_norm.MixtralLayerNormalization"

    def feed_forward(self, layer: Any) -> dict[str, Any]:
        require_equal(layer, output_router_logits=False)
        module = "models.mixtral.mixtral_decoder"
        block = require(layer._sparse_moe_block, f"{module}.MixtralSparseMoeBlock")
        require_float32(block)
        own = _bank(block.expert_bank, f"{module}.MixtralMoeExperts")
        return {
            "activation": "silu",
            "hidden": Dense(own._expert_feedforward_gate_dense),
            "up": Dense(own._expert_feedforward_intermediate_dense),
            "back": Dense(own._expert_feedforward_output_dense),
            "experts": _experts(block, block.top_k, block._sparse_feedforward_gate_dense, True),
        }


class QwenMoe(Qwen):
    decoder = "models.qwen_moe.qwen_moe_decoder.QwenMoeTransformerDecoder"
    attention = "models.qwen_moe.qwen_moe_attention.QwenMoeAttention"
    norm_class = "models.qwen_moe.qwen_moe_layernorm.QwenMoeLayerNorm"

    def last_norm(self, backbone: Any) -> Norm:
        return parts.rms_norm(backbone.layer_norm, Qwen.norm_class)

    def feed_forward(self, layer: Any) -> dict[str, Any]:
        require_equal(layer, output_router_logits=False)
        block, module = layer.mlp, "models.qwen_moe.qwen_moe_decoder"
        if class_name(type(block)) == f"{module}.QwenMoeMLP":
            return _plain(block, f"{module}.QwenMoeMLP")
        require_float32(require(block, f"{module}.QwenSparseMoeBlock"))
        own = _bank(block.expert_bank, f"{module}.QwenMoeExperts")
        shared = _plain(block.shared_expert_dense, f"{module}.QwenMoeMLP")
        mixture = _experts(
            block,
            block.top_k,
            block._sparse_feedforward_gate_dense,
            bool(block.norm_top_k_prob),
            shared_hidden=shared["hidden"],
            shared_up=shared["up"],
            shared_back=shared["back"],
            shared_gate=parts.dense(block.shared_expert_gate_dense),
        )
        return {**_both(own), "experts": mixture}


class Qwen3Moe(Qwen3):
    decoder = "models.qwen3_moe.qwen3_moe_decoder.Qwen3MoeTransformerDecoder"
    attention = "models.qwen3_moe.qwen3_moe_attention.Qwen3MoeAttention"
    norm_class = "models.qwen3_moe.qwen3_moe_layernorm.Qwen3MoeLayerNorm"

    def feed_forward(self, layer: Any) -> dict[str, Any]:
        block, module = layer.mlp, "models.qwen3_moe.qwen3_moe_decoder"
        if class_name(type(block)) == f"{module}.Qwen3MoeMLP":
            return _plain(block, f"{module}.Qwen3MoeMLP")
        require_float32(require(block, f"{module}.Qwen3SparseMoeBlock"))
        own = _bank(block.expert_bank, f"{module}.Qwen3MoeExperts")
        normalized = bool(block.norm_top_k_prob)
        mixture = _experts(block, block.top_k, block._sparse_feedforward_gate_dense, normalized)
        return {**_both(own), "experts": mixture}


class GptOss(Rotated):
    """Has sinks, YaRN, every second layer with a window, and experts with clipped gates."""

    decoder = "models.gpt_oss.gpt_oss_decoder.GptOssTransformerDecoder"
    attention = "models.gpt_oss.gpt_oss_attention.GptOssAttention"
    norm_class = "models.gpt_oss.gpt_oss_layer_norm.GptOssLayerNormalization"
    dropouts = ()
    norms = ("input_layernorm", "post_attention_layernorm")
    softmax = None  # its code has sinks

    def model_options(self, backbone: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        first = backbone.transformer_layers[0]
        return {"rotary_dim": first.self_attention_layer._rotary_dim or None}, {}

    def rotation(self, attention: Any) -> Rotation | None:
        return parts.rotation(attention.rotary_embedding_layer, attention._rotary_dim)

    def window(self, layer: Any) -> Any:
        # The key at i - window is seen too; 0 and less are no window.
        size = layer.self_attention_layer.sliding_window
        return size + 1 if size is not None and size > 0 else None

    def attention_options(self, attention: Any) -> dict[str, Any]:
        return {**super().attention_options(attention), "sinks": attention.sinks}

    def feed_forward(self, layer: Any) -> dict[str, Any]:
        require_equal(layer, output_router_logits=False)
        module = "models.gpt_oss.gpt_oss_decoder"
        block = require(layer.sparse_moe_block, f"{module}.GptOssSparseMoeBlock")
        router = require(block.router, f"{module}.GptOssTopKRouter")
        own = require(block.experts, f"{module}.GptOssExperts")
        for one in (block, router, own):
            require_float32(one)
        require_equal(own, alpha=1.702)

        def half(begin: int) -> Dense:
            weights = (own.gate_up_proj, own.gate_up_proj_bias)
            kernel, bias = (Computed(_columns, (x,), (begin, None, 2)) for x in weights)
            return Dense(kernel, bias)

        return {
            "activation": "quick_gelu",
            "hidden": half(0),
            "up": half(1),
            "back": Dense(own.down_proj, own.down_proj_bias),
            # A softmax of the chosen scores is their part of the softmax of all.
            "experts": _experts(router, router.top_k, router.router_dense, True),
            "gate_limit": parts.cap(own.limit),
            "up_offset": 1.0,
        }
