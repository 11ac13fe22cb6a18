"""What stock Keras runs on PyTorch's devices."""

from __future__ import annotations

from typing import Any

from heed.ops.backends import KerasKernel
from heed.ops.checks import dtype_of
from heed.ops.mask import Mask


def keras_kernel(query: Any, key: Any, value: Any, mask: Mask | None) -> KerasKernel | None:
    """See `Backend`."""
    heads, kv_heads = query.shape[2], key.shape[2]
    # PyTorch's fused kernels take equal numbers of heads. Keras repeats grouped ones, but not a single one.
    if kv_heads == 1 < heads or dtype_of(query) == "float64":
        return None
    copies = heads != kv_heads or mask not in (None, Mask.causal())
    return KerasKernel("PyTorch's fused attention", copies)
