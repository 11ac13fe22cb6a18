"""Attention by PyTorch's own fused kernels, on GPUs."""

from __future__ import annotations

import torch

from heed.ops.backends.torch.operands import is_observed, is_transformed
from heed.ops.backends.torch.portable.implementation import Portable
from heed.ops.backends.torch.sdpa import attention
from heed.ops.mask import Mask
from heed.ops.scores import DotScore
from heed.ops.spec import AttentionSpec, Tensors

# Equal over as many keys as queries.
_CAUSAL = (Mask.causal(), Mask.causal("bottom_right"))


@torch.compiler.assume_constant_result
def machine_reasons() -> tuple[str, ...]:
    """Returns why the kernels are not used on this machine, as sentences."""
    return () if torch.cuda.is_available() else ("PyTorch has no GPU for its fused attention",)


class Sdpa(Portable):
    """See `Implementation`. Weights, statistics and calls for the log-sum-exp are inherited from the portable form."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        """See `Implementation`."""
        reasons = list(machine_reasons())
        return reasons if reasons or spec is None else _reasons_against(spec)

    def attend(
        self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """See `Implementation`."""
        if not return_lse:  # which PyTorch's function does not give
            try:
                return attention.attend(spec, *tensors[:3]), None
            except RuntimeError as error:
                if "kernel" not in str(
                    error
                ):  # "No available kernel": PyTorch would build the scores
                    raise
        return super().attend(spec, tensors, return_lse=return_lse)


def _reasons_against(spec: AttentionSpec) -> list[str]:
    """Why PyTorch's kernels do not give heed's result, as sentences."""
    product = spec.score.product
    if product is None or product != DotScore(product.scale):
        return ["PyTorch's fused attention has scaled dot products only"]
    length, keys = spec.lengths
    causal = spec.mask in _CAUSAL and length == keys
    found = {
        "needs a scale above 0": product.scale <= 0,
        "drops other weights than heed": bool(spec.dropout),
        "hides no keys by a bias of -1e30": spec.has_bias,
        "has no ALiBi": spec.has_slopes,
        "has no mask but a causal one over as many keys as queries": not (
            spec.mask is None or causal
        ),
        "repeats grouped heads in memory": spec.heads[0] != spec.heads[1],
        "needs values as wide as keys": spec.widths[0] != spec.widths[1],
        "computes float64 by building the scores": spec.dtype == "float64",
        "needs at least one query, key and feature": 0 in (spec.batch, *spec.lengths, *spec.widths),
        "is not used where PyTorch traces, transforms or differentiates forward": torch.compiler.is_compiling()
        or is_observed()
        or is_transformed(),
    }
    return [f"PyTorch's fused attention {reason}" for reason, holds in found.items() if holds]
