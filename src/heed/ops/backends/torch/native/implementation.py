"""Attention with the native kernels, on CPUs."""

from __future__ import annotations

import functools

import torch

from heed.ops.backends.protocol import OutputAndLse
from heed.ops.backends.torch.device import device_of
from heed.ops.backends.torch.native import _op
from heed.ops.backends.torch.portable.implementation import Portable
from heed.ops.core.attention import reasons_against, reasons_of_machine
from heed.ops.core.library import load
from heed.ops.spec import AttentionSpec, Tensors


@torch.compiler.assume_constant_result
def machine_reasons() -> tuple[str, ...]:
    """Return why the kernels cannot run on this machine, as sentences."""
    return _find_reasons(load()[1], device_of)


_find_reasons = functools.cache(reasons_of_machine)


class Native(Portable):
    """Attention with the native kernels; weights and statistics are those of the portable form."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        return reasons_against(spec, machine_reasons())

    def attend(self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool) -> OutputAndLse:
        return _op.run(spec, tensors, return_lse)
