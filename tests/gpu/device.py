"""Runs functions of arrays on the GPU of PyTorch or JAX, with their gradients.

`HEED_GPU_TESTS=anywhere` runs the tests of this folder on the CPU where there is no GPU, at small sizes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest

from benchmarks.gpu_device import has_gpu, make_step, to_device, to_host

__all__ = ["BACKEND", "HAS_GPU", "needs_device", "run", "to_device", "to_host"]
BACKEND = keras.config.backend()
if BACKEND == "tensorflow":
    pytest.skip("heed has no fused GPU attention on TensorFlow", allow_module_level=True)


HAS_GPU = has_gpu()
needs_device = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (HAS_GPU or os.environ.get("HEED_GPU_TESTS") == "anywhere"), reason="needs a GPU"
    ),
]


def run(
    function: Callable[..., Any], tensors: Sequence[Any], upstream: Any | None = None
) -> list[np.ndarray]:
    """Return the output of a function of tensors, and with `upstream` the gradients of all of them."""
    return [to_host(x) for x in make_step(function, tensors, upstream)()]
