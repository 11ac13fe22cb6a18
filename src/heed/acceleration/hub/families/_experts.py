"""Mixtral, Qwen-MoE and Qwen 3 MoE: layers like Llama's, with mixtures of experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from heed.acceleration.hub import parts
from heed.acceleration.hub.families._llama import Family, qwen3_window, qwen_window, swiglu
from heed.acceleration.hub.recognition import (
    LeftToKerasError,
    class_name,
    require,
    require_equal,
    require_float32,
)
from heed.ops.core.description import Computed, Dense, Experts

_MIXTRAL = "models.mixtral.mixtral"
_QWEN = "models.qwen_moe.qwen_moe"
_QWEN_3 = "models.qwen3_moe.qwen3_moe"


def experts(block: Any, top_k: Any, router: Any, normalized: bool, **shared: Any) -> Experts:
    """Return the mixture of a block of KerasHub."""
    count = router.kernel.shape[-1]
    if type(top_k) is not int or not 1 <= top_k <= count:
        raise LeftToKerasError(f"{block.name} chooses {top_k!r} of {count} experts")
    return Experts(count, top_k, parts.dense(router), normalized, **shared)


def bank(layer: Any, name: str) -> Any:
    """Return the experts of a block, of the class of this name, with SiLU."""
    require_float32(require(layer, name))
    if parts.activation_name(layer.activation) != "silu":
        raise LeftToKerasError(f"{layer.name} has another activation than silu")
    return layer


def columns(weight: np.ndarray, begin: int | None, end: int | None, step: int) -> np.ndarray:
    """Return some of the outputs of a weight."""
    return weight[..., begin:end:step]


def _mixtral(layer: Any) -> dict[str, Any]:
    require_equal(layer, output_router_logits=False)
    block = require(layer._sparse_moe_block, f"{_MIXTRAL}_decoder.MixtralSparseMoeBlock")
    require_float32(block)
    own = bank(block.expert_bank, f"{_MIXTRAL}_decoder.MixtralMoeExperts")
    return {
        "activation": "silu",
        "hidden": Dense(own._expert_feedforward_gate_dense),
        "up": Dense(own._expert_feedforward_intermediate_dense),
        "back": Dense(own._expert_feedforward_output_dense),
        "experts": experts(block, block.top_k, block._sparse_feedforward_gate_dense, True),
    }


def _both(own: Any) -> dict[str, Any]:
    """Return the fields of experts that keep both halves of their gated part in one weight."""
    both = own._expert_feedforward_gate_dense
    half = both.shape[-1] // 2
    return {
        "activation": "silu",
        "hidden": Dense(Computed(columns, (both,), (None, half, 1))),
        "up": Dense(Computed(columns, (both,), (half, None, 1))),
        "back": Dense(own._expert_feedforward_output_dense),
    }


def _qwen(layer: Any) -> dict[str, Any]:
    require_equal(layer, output_router_logits=False)
    block, module = layer.mlp, f"{_QWEN}_decoder"
    if class_name(type(block)) == f"{module}.QwenMoeMLP":
        return _plain(block, f"{module}.QwenMoeMLP")
    require_float32(require(block, f"{module}.QwenSparseMoeBlock"))
    own = bank(block.expert_bank, f"{module}.QwenMoeExperts")
    shared = _plain(block.shared_expert_dense, f"{module}.QwenMoeMLP")
    mixture = experts(
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


def _qwen3(layer: Any) -> dict[str, Any]:
    block, module = layer.mlp, f"{_QWEN_3}_decoder"
    if class_name(type(block)) == f"{module}.Qwen3MoeMLP":
        return _plain(block, f"{module}.Qwen3MoeMLP")
    require_float32(require(block, f"{module}.Qwen3SparseMoeBlock"))
    own = bank(block.expert_bank, f"{module}.Qwen3MoeExperts")
    normalized = bool(block.norm_top_k_prob)
    mixture = experts(block, block.top_k, block._sparse_feedforward_gate_dense, normalized)
    return {**_both(own), "experts": mixture}


def _plain(block: Any, name: str) -> dict[str, Any]:
    require_float32(require(block, name))
    return swiglu(block)


describe_mixtral = Family(
    f"{_MIXTRAL}_decoder.MixtralTransformerDecoder",
    f"{_MIXTRAL}_attention.CachedMixtralAttention",
    f"{_MIXTRAL}_layer_norm.MixtralLayerNormalization",
    window=lambda layer: layer.sliding_window,
    feed_forward=_mixtral,
).describe

describe_qwen_moe = Family(
    f"{_QWEN}_decoder.QwenMoeTransformerDecoder",
    f"{_QWEN}_attention.QwenMoeAttention",
    f"{_QWEN}_layernorm.QwenMoeLayerNorm",
    window=qwen_window,
    feed_forward=_qwen,
    final_norm="models.qwen.qwen_layernorm.QwenLayerNorm",
).describe

describe_qwen3_moe = Family(
    f"{_QWEN_3}_decoder.Qwen3MoeTransformerDecoder",
    f"{_QWEN_3}_attention.Qwen3MoeAttention",
    f"{_QWEN_3}_layernorm.Qwen3MoeLayerNorm",
    window=qwen3_window,
    normed=True,
    feed_forward=_qwen3,
).describe
