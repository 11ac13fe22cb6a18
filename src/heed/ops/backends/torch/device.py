"""The device on which PyTorch computes."""

from __future__ import annotations

import functools
from typing import Any

import torch

from heed.ops.backends import CPU


@torch.compiler.assume_constant_result
@functools.cache
def has_cuda() -> bool:
    """Return whether PyTorch has a GPU of CUDA or ROCm. PyTorch counts the devices at each question."""
    return torch.cuda.is_available()


@torch.compiler.assume_constant_result
@functools.cache
def _default_device() -> str:
    accelerator: Any = getattr(torch, "accelerator", torch.cuda)
    return "GPU" if accelerator.is_available() else CPU


def device_of(x: Any = None) -> str:
    """Return where attention of this tensor is computed."""
    kind = _default_device()
    if kind == CPU or not isinstance(x, torch.Tensor):
        return kind
    return CPU if x.is_cpu or x.is_meta else kind
