"""Helpers for the tests of fused row-wise ops: shapes, numbers, gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from hypothesis import strategies as st

from tests.backend import vjp
from tests.strategies import cast

DTYPES = ("float32", "float64", "bfloat16", "float16")
# Around the lanes of each instruction set, the column groups of dropout, and the blocks of long sums.
WIDTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 1023, 1025, 4095, 4097)
LEADING = ((), (1,), (5,), (2, 3), (2, 0, 4), (0,), (3, 1, 2))


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    """Return shapes of tensors (..., D)."""
    return st.builds(
        lambda leading, width: (*leading, width), st.sampled_from(LEADING), st.sampled_from(WIDTHS)
    )


def numbers(shape: tuple[int, ...], dtype: str, seed: int, scale: float = 1.0) -> Any:
    """Return normal random numbers, rounded to the dtype."""
    return keras.ops.convert_to_tensor(
        cast(scale * np.random.default_rng(seed).normal(size=shape), dtype)
    )


def differentiate(
    function: Callable[..., Any], arguments: list[Any], seed: int
) -> tuple[Any, list[Any], Any]:
    """Return the result, the gradients of sum(result * cotangent), and the cotangent."""
    result, pull = vjp(function, *arguments)
    cotangent = numbers(tuple(result.shape), keras.backend.standardize_dtype(result.dtype), seed)
    return result, pull(cotangent), cotangent


def bits(*tensors: Any) -> list[bytes]:
    """Return the bits of each tensor, for comparisons."""
    return [np.asarray(x).tobytes() for x in tensors]
