"""What stock Keras runs on JAX' devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heed.ops.backends import KerasKernel
from heed.ops.backends.jax.cudnn.implementation import widest_heads
from heed.ops.backends.jax.device import device_of

if TYPE_CHECKING:  # which asks this module
    from heed.ops.device_rule import Call


def keras_kernel(call: Call) -> KerasKernel | None:
    """Return the fused kernel that Keras runs, or None."""
    if device_of() == "TPU":
        # Keras' masks are traced, which its kernel does not take.
        return None if call.has_mask_in_memory else KerasKernel("JAX' splash attention", False)
    width, dtype = call.query.shape[-1], call.query.dtype
    # Of a mask (..., 1, S), as of padding, JAX' call of cuDNN wants all rows.
    if dtype not in ("float16", "bfloat16") or call.has_one_row:
        return None
    if width % 8 or width > widest_heads():
        return None
    return KerasKernel("cuDNN's attention", call.has_mask_in_memory)
