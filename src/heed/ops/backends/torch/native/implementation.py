"""Attention with the native kernels, on CPUs."""

from __future__ import annotations

import functools

import torch

from heed.ops.backends import CPU
from heed.ops.backends.torch.device import device_of
from heed.ops.backends.torch.native import op
from heed.ops.backends.torch.portable.implementation import Portable
from heed.ops.core.attention import reasons_against
from heed.ops.core.library import load
from heed.ops.spec import AttentionSpec, Tensors


@torch.compiler.assume_constant_result
def machine_reasons() -> tuple[str, ...]:
    """Returns why the kernels cannot run on this machine, as sentences."""
    return _find_reasons()


@functools.cache
def _find_reasons() -> tuple[str, ...]:
    if reason := load()[1]:
        return (reason,)
    if device_of() != CPU:
        return ("there is a GPU, and the native kernels are for CPUs",)
    return ()


class Native(Portable):
    """Attention with the native kernels; weights and statistics are those of the portable form."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        reasons = machine_reasons()
        return [*reasons] if reasons or spec is None else reasons_against(spec)

    def attend(
        self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return op.run(spec, tensors, return_lse)
