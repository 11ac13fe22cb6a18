"""heed's layers beside Keras' own, with the same weights."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import numpy as np
import pytest

from heed.layers import MultiHeadAttention
from tests.tolerances import to_numpy

# heed and Keras sum in another order.
TOLERANCE = {"float32": 3e-6, "float16": 3e-3, "bfloat16": 3e-2}
# Not in the oldest Keras that heed works with.
HAS_WINDOW = "sliding_window" in inspect.signature(keras.layers.MultiHeadAttention).parameters


def randoms(*shapes: tuple[int, ...], seed: int = 0, dtype: str = "float32") -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def randomise(layer: keras.layers.Layer, seed: int = 0) -> None:
    """Draw all weights anew, biases too, which start as zeros."""
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(size=w.shape) * 0.3 for w in layer.weights])


def pair(
    shapes: list[tuple[int, ...]], num_heads: int = 2, key_dim: int = 4, **options: Any
) -> tuple[MultiHeadAttention, keras.layers.Layer]:
    """Return heed's MultiHeadAttention and Keras' one, or its GroupQueryAttention, with equal weights."""
    ours = MultiHeadAttention(num_heads, key_dim, **options)
    groups = options.pop("num_key_value_heads", None)
    options = {name: value for name, value in options.items() if value is not None}
    known = inspect.signature(keras.layers.MultiHeadAttention).parameters
    if missing := set(options) - set(known) - {"dtype"}:
        pytest.skip(f"this version of Keras has no {missing}")
    if groups is None:
        stock = keras.layers.MultiHeadAttention(num_heads, key_dim, **options)
    else:
        stock = keras.layers.GroupQueryAttention(key_dim, num_heads, groups, **options)
    ours.build(*shapes)
    stock.build(*shapes)
    randomise(stock)
    ours.set_weights(stock.get_weights())
    return ours, stock


def assert_close(one: Any, other: Any, dtype: str = "float32") -> None:
    ones, others = keras.tree.flatten(one), keras.tree.flatten(other)
    assert len(ones) == len(others)
    for x, y in zip(ones, others, strict=True):
        x, y = (to_numpy(keras.ops.convert_to_numpy(z)) for z in (x, y))
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def visible_somewhere(mask: np.ndarray) -> np.ndarray:
    """Return the mask, with the first key opened to queries that would see nothing."""
    mask = mask.copy()
    mask[..., 0] |= ~mask.any(-1)
    return mask
