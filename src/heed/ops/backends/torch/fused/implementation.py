"""Attention by PyTorch's own fused kernels, on GPUs."""

from __future__ import annotations

import torch

from heed.ops.backends.protocol import OutputAndLse
from heed.ops.backends.torch.device import has_cuda
from heed.ops.backends.torch.fused import _attention
from heed.ops.backends.torch.fused._protocol import Call, CannotRun
from heed.ops.backends.torch.operands import is_observed, is_transformed
from heed.ops.backends.torch.portable.implementation import Portable
from heed.ops.spec import AttentionSpec, Tensors


@torch.compiler.assume_constant_result
def machine_reasons() -> tuple[str, ...]:
    """Return why no fused kernel is used on this machine, as sentences."""
    return () if has_cuda() else ("PyTorch has no GPU for its fused attention",)


def is_on_gpu(x: torch.Tensor) -> bool:
    """Return whether a tensor is where the kernels run: a GPU may be there, but not be used."""
    return x.is_cuda


class Fused(Portable):
    """Attention by fused calls of PyTorch; weights and statistics are those of the portable form.

    Args:
        call: computes the attention.
        with_lse: the implementation that computes the log-sum-exp where the call does not; None for the portable form.
    """

    def __init__(self, call: Call, with_lse: Fused | None = None):
        self._call, self._with_lse = call, with_lse

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        reasons = [*machine_reasons()] or self._call.machine_reasons()
        if reasons or spec is None:
            return reasons
        return _reasons_against(spec) or self._call.reasons_against(spec)

    def attend(self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool) -> OutputAndLse:
        if return_lse and not self._call.gives_lse:
            other = self._with_lse
            if other is not None and not other.unsupported_reasons(spec):
                return other.attend(spec, tensors, return_lse=True)
        elif is_on_gpu(tensors.query):
            try:
                return _attention.attend(self._call, spec, tensors, return_lse)
            except CannotRun:
                pass
        return super().attend(spec, tensors, return_lse=return_lse)


@torch.compiler.assume_constant_result
def _is_changed() -> bool:
    """Tell what `is_transformed` tells, where torch.compile traces, too: it runs transformations while it does."""
    return is_transformed()


def _reasons_against(spec: AttentionSpec) -> list[str]:
    """Return why no fused call gives heed's result, as sentences."""
    product = spec.score.base_product
    if product is None:
        return ["PyTorch's fused attention has dot products only"]
    found = {
        "needs a scale above 0": product.scale <= 0,
        "drops other weights than heed": bool(spec.dropout),
        "hides no keys by a bias of -1e30": spec.has_bias,
        "computes float64 by building the scores": spec.dtype == "float64",
        "needs at least one query, key and feature": 0 in (spec.batch, *spec.lengths, *spec.widths),
        "is not used where PyTorch records, transforms or differentiates forward": _is_changed()
        or (not torch.compiler.is_compiling() and is_observed()),
    }
    return [f"PyTorch's fused attention {reason}" for reason, holds in found.items() if holds]
