"""Fused calls of a framework, each compared with the portable form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

import heed
from heed import ops
from tests import tolerances
from tests.backend import vjp


class Sizes(NamedTuple):
    B: int
    T: int
    S: int
    N: int
    K: int
    H: int

    def draw(self, dtype: str, layout: str = "BTNH") -> list[Any]:
        """Return query, key and value."""
        B, T, S, N, K, H = self
        rng = np.random.default_rng(0)
        made = [rng.normal(size=size) for size in ((B, T, N, H), (B, S, K, H), (B, S, K, H))]
        made = [x if layout == "BTNH" else x.swapaxes(1, 2) for x in made]
        return [keras.ops.convert_to_tensor(x, dtype) for x in made]


def first(tensors: list[Any], options: dict[str, Any], upstream: Any = None) -> list[Any]:
    """Return output and gradients."""
    output, pull = vjp(lambda *x: ops.dot_product_attention(*x, **options), *tensors)
    if upstream is None:
        upstream = np.linspace(-1, 1, np.prod(output.shape)).reshape(output.shape)
    return [output, *pull(keras.ops.convert_to_tensor(upstream, output.dtype))]


def second(tensors: list[Any], options: dict[str, Any]) -> list[Any]:
    """Return the gradients of the sum of squares of the first ones."""

    def squares(*tensors: Any) -> Any:
        found = first(list(tensors), options)[1:]
        return sum(keras.ops.sum(keras.ops.square(keras.ops.cast(x, "float32"))) for x in found)

    return list(vjp(squares, *tensors)[1]())


def assert_as_portable(
    run: Callable[..., list[Any]], tensors: list[Any], options: Any, dtype: str, *others: Any
) -> None:
    """Check the results of `run` of tensors, options and others. NaN is equal to NaN alone."""
    found = run(tensors, options, *others)
    with heed.set_implementation("portable"):
        expected = run(tensors, options, *others)
    for one, other in zip(found, expected, strict=True):
        one, other = (
            keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")) for x in (one, other)
        )
        tolerances.assert_gradients(one, other, dtype)
