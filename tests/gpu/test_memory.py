"""Memory on a GPU grows with the length, not with its square."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from benchmarks.gpu_device import measure_peak
from heed import Mask, ops
from tests.gpu.device import HAS_GPU, needs_device, to_device
from tests.slow import slow

pytestmark = needs_device

T, N, H = 16384 if HAS_GPU else 2048, 8, 64
_IDS = (np.arange(T) // (T // 8)).astype("int32")[None]
CALLS: dict[str, Callable[[], dict[str, Any]]] = {
    "causal": lambda: {"is_causal": True},
    "window": lambda: {"mask": Mask.window(1023, 0)},
    "lengths": lambda: {"mask": Mask.lengths([T // 2])},
    "documents": lambda: {"mask": Mask.causal() & Mask.segments(_IDS)},
    "padding as an array": lambda: {"mask": (np.arange(T) < T // 2)[None, None, None]},
    "soft cap": lambda: {"soft_cap": 20.0, "is_causal": True},
}


def operands(kv_heads: int = N) -> list[Any]:
    rng = np.random.default_rng(0)
    shapes = ((1, T, N, H), *[(1, T, kv_heads, H)] * 2)
    return [to_device(rng.normal(size=x).astype("float32"), "bfloat16") for x in shapes]


def peak(options: dict[str, Any], kv_heads: int = N) -> int | None:
    """Return the memory of a forward and a backward pass."""
    tensors = operands(kv_heads)
    attend = functools.partial(ops.dot_product_attention, **options)
    return measure_peak(attend, tensors, keras.ops.ones_like(tensors[0]))


@pytest.mark.parametrize("name", ["causal", "window", "lengths", *slow([*CALLS][3:])])
def test_scores_are_never_in_memory(name: str) -> None:
    found = peak(CALLS[name]())
    scores = 2 * N * T * T  # bytes of one copy in bfloat16
    print(f"{name}: {found} bytes; the scores take {scores}")
    assert found is None or found < scores / (4 if HAS_GPU else 1)


def test_grouped_heads_are_not_repeated() -> None:
    grouped, full = (peak({"is_causal": True}, kv_heads) for kv_heads in (1, N))
    repeated = 2 * 2 * (N - 1) * T * H  # bytes of the repeated keys and values
    print(f"grouped: {grouped} bytes; not grouped: {full}; repeated: {repeated}")
    if HAS_GPU and grouped is not None and full is not None:
        # PyTorch's kernel sums up gradients that it made for each query's head. Whoever repeats keys and values, which
        # are inputs where they are not grouped, holds these, too.
        summed = 2 * 2 * N * T * H
        assert grouped < full + summed + repeated / 2
