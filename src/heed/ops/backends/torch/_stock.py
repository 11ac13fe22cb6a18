"""What stock Keras runs on PyTorch's devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heed.ops.backends import KerasKernel

if TYPE_CHECKING:  # which asks this module
    from heed.ops.device_rule import Call


def keras_kernel(call: Call) -> KerasKernel | None:
    """Return the fused kernel that Keras runs, or None."""
    heads, kv_heads = call.query.shape[2], call.key.shape[2]
    # PyTorch's fused kernels take equal numbers of heads. Keras repeats grouped ones, but not a single one.
    if kv_heads == 1 < heads or call.query.dtype == "float64":
        return None
    copies = heads != kv_heads or call.has_mask_in_memory
    return KerasKernel("PyTorch's fused attention", copies)
