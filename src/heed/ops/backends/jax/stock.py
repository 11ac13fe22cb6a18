"""What stock Keras runs on JAX' devices."""

from __future__ import annotations

from typing import Any

from heed.ops.backends import KerasKernel
from heed.ops.backends.jax.cudnn.implementation import widest_heads
from heed.ops.backends.jax.device import device_of
from heed.ops.checks import dtype_of
from heed.ops.mask import Mask


def keras_kernel(query: Any, key: Any, value: Any, mask: Mask | None) -> KerasKernel | None:
    """See `Backend`."""
    if device_of() == "TPU":
        # Keras' masks are traced, which its kernel does not take.
        return None if mask is not None else KerasKernel("JAX' splash attention", False)
    width = query.shape[-1]
    if dtype_of(query) not in ("float16", "bfloat16") or width % 8 or width > widest_heads():
        return None
    # Of a mask (..., 1, S) as of padding, JAX' call of cuDNN wants all rows.
    if mask is not None and all(_is_one_row(rule.dense) for rule in mask.rules):
        return None
    return KerasKernel("cuDNN's attention", mask not in (None, Mask.causal()))


def _is_one_row(dense: Any) -> bool:
    return dense is not None and (len(dense.shape) < 2 or dense.shape[-2] == 1)
