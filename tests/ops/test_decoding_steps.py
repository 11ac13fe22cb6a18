"""Ops of a decoding step other than attention: in graphs, in place, and with gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.about_tensorflow import tf

# isort: split
from heed.ops.backends import current
from tests.backend import vjp
from tests.graphs import allocated
from tests.native.core import LIBRARY

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="installed without the native library")
RNG = np.random.default_rng(0)


def native() -> Any:
    return current().FUSED_OPS["native"]


def normal(*shape: int) -> tf.Tensor:
    return tf.constant(RNG.normal(size=shape))


def assert_same_gradients(one: Any, other: Any, *inputs: tf.Tensor) -> None:
    """Compare first and second derivatives of two functions."""

    def differentiate(function: Any) -> list[Any]:
        def first(*inputs: Any) -> list[Any]:
            return vjp(lambda *x: tf.sin(y := function(*x)) * y, *inputs)[1]()

        gradients, pull = vjp(first, *inputs)
        return [*gradients, *pull(gradients)]

    for mine, expected in zip(differentiate(one), differentiate(other), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_a_product(transposed: bool) -> None:
    x, weights = normal(3, 5), normal(2, 7, 5) if transposed else normal(2, 5, 7)
    letters = "gnk" if transposed else "gkn"
    assert_same_gradients(
        lambda x, w: native().product(x, w, transposed),
        lambda x, w: tf.einsum(f"rk,{letters}->rgn", x, w),
        x,
        weights,
    )


@pytest.mark.parametrize("index", [-3, 0, 2, 9])
def test_gradients_of_a_write(index: int) -> None:
    at = min(max(index, 0), 4)

    def by_parts(cache: tf.Tensor, update: tf.Tensor) -> tf.Tensor:
        return tf.concat([cache[:, :at], update, cache[:, at + 2 :]], 1)

    assert_same_gradients(
        lambda cache, update: native().write(cache, update, tf.constant(index)),
        by_parts,
        normal(2, 6, 3),
        normal(2, 2, 3),
    )


def test_many_rows_and_unknown_numbers_of_them_are_left_to_the_backend() -> None:
    weights = normal(1, 5, 7)
    assert native().product(normal(16, 5), weights, False) is not None
    assert native().product(normal(17, 5), weights, False) is None
    assert native().product(normal(0, 5), weights, False) is None

    @tf.function(input_signature=[tf.TensorSpec((None, 5), tf.float64)])
    def unknown(x: tf.Tensor) -> bool:
        return native().product(x, weights, False) is None

    assert unknown(normal(2, 5))


def test_who_holds_a_cache_keeps_it() -> None:
    cache, update = tf.zeros((2, 6, 3)), tf.ones((2, 1, 3))
    written = native().write(cache, update, tf.constant(2))
    assert not np.any(cache)
    assert np.all(written[:, 2])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int32"])
def test_a_loop_writes_in_place(dtype: str) -> None:
    def loop(steps: tf.Tensor) -> tf.Tensor:
        def body(i: tf.Tensor, cache: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            update = tf.cast(tf.fill((2, 1, 8), i + 1), dtype)
            return i + 1, native().write(cache, update, i)

        return tf.while_loop(lambda i, _: i < steps, body, (0, tf.zeros((2, 512, 8), dtype)))[1]

    function = tf.function(loop).get_concrete_function(tf.TensorSpec((), tf.int32))
    cache = function(tf.constant(100)).numpy().astype("float64")
    expected = np.where(np.arange(512) < 100, np.arange(512) + 1.0, 0.0)
    np.testing.assert_array_equal(cache, np.broadcast_to(expected[None, :, None], cache.shape))
    few, many = (allocated(function, tf.constant(n)) for n in (3, 103))
    assert (many - few) / 100 < 2 * 2 * 8 * 8 + 32  # an update, and the numbers of the loop


@pytest.mark.parametrize(
    ("match", "shapes"),
    [
        ("same rank", ((2, 6, 3), (2, 1))),
        ("but for fewer positions", ((2, 6, 3), (2, 7, 3))),
        ("but for fewer positions", ((2, 6, 3), (1, 1, 3))),
        ("but for fewer positions", ((2, 6, 3), (2, 1, 4))),
    ],
)
def test_a_write_that_does_not_fit(match: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    cache, update = (tf.zeros(shape) for shape in shapes)
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        native().write(cache, update, tf.constant(0))
