"""Fused dropout and residual: the mask, results and gradients, in place, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import heed
from heed import ops
from heed.layers.dropout import Dropout
from tests import tolerances
from tests.backend import on_tensorflow, tf, vjp
from tests.graphs import traced
from tests.ops import rows
from tests.ops.test_attention_gradients import second_derivatives
from tests.ops.test_cross_entropy import places

native_only = pytest.mark.skipif(
    heed.info()["implementation"] != "native", reason=f"no native kernels: {heed.info()['reason']}"
)


def keep_mask(shape: tuple[int, ...], rate: float, seed: Any) -> np.ndarray:
    """Return the numbers that are kept, read from a tensor of ones."""
    return np.asarray(ops.dropout(np.ones(shape), rate, seed=seed)) > 0


def step(x: Any, *residual: Any, rate: float = 0.3, seed: Any = 5) -> list[Any]:
    """Return the result, and the gradients of the sum of its squares."""
    y, pull = vjp(
        lambda x, residual=None: ops.dropout(x, rate, seed=seed, residual=residual), x, *residual
    )
    return [y, *pull(2 * y)]


@given(
    shape=rows.shapes(),
    dtype=st.sampled_from(rows.DTYPES),
    rate=st.sampled_from([0.1, 0.5, 0.9]),
    seed=st.integers(0, 2**40),
    has_residual=st.booleans(),
)
def test_results_and_gradients_follow_the_formula(
    implementation: str,
    shape: tuple[int, ...],
    dtype: str,
    rate: float,
    seed: int,
    has_residual: bool,
) -> None:
    inputs = [rows.numbers(shape, dtype, i) for i in range(1 + has_residual)]
    y, gradients, d_y = rows.differentiate(
        lambda x, residual=None: ops.dropout(x, rate, seed=seed, residual=residual), inputs, 3
    )
    factor = keep_mask(shape, rate, seed) / (1 - rate)
    x, *residual = map(tolerances.to_float64, inputs)
    tolerances.assert_values(y, sum(residual) + factor * x, dtype)
    tolerances.assert_values(gradients[0], factor * tolerances.to_float64(d_y), dtype)
    assert y.dtype == gradients[0].dtype == inputs[0].dtype
    if has_residual:
        np.testing.assert_array_equal(
            tolerances.to_float64(gradients[1]), tolerances.to_float64(d_y)
        )


@pytest.mark.parametrize("seed", [0, 2**63 + 5])
def test_what_is_kept_is_what_attention_would_keep(implementation: str, seed: int) -> None:
    """With rows for queries and columns for keys, in head 0 of batch entry 0, on both implementations."""
    query, key = np.zeros((1, 6, 1, 2)), np.zeros((1, 1100, 1, 2))
    weights = ops.attention_weights(query, key, dropout=0.3, seed=seed)
    expected = np.asarray(weights)[0, 0] > 0
    np.testing.assert_array_equal(keep_mask((6, 1100), 0.3, seed), expected)
    np.testing.assert_array_equal(keep_mask((2, 3, 1100), 0.3, seed), expected.reshape(2, 3, -1))
    assert 0.6 < expected.mean() < 0.8


def test_seeds_and_the_share_that_is_dropped(implementation: str) -> None:
    masks = [keep_mask((200, 100), 0.25, seed) for seed in (1, 2, 2**32 + 1)]
    for mask in masks:
        assert abs(mask.mean() - 0.75) < 0.01
        assert mask.mean(0).min() > 0.5
        assert mask.mean(1).min() > 0.5
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs((masks[one] == masks[other]).mean() - 0.625) < 0.02
    words = keras.ops.convert_to_tensor([1, 1], "uint32")
    np.testing.assert_array_equal(keep_mask((200, 100), 0.25, words), masks[2])
    keras.utils.set_random_seed(4)
    drawn = keep_mask((200, 100), 0.25, None)
    assert (drawn != keep_mask((200, 100), 0.25, None)).any()
    keras.utils.set_random_seed(4)
    np.testing.assert_array_equal(keep_mask((200, 100), 0.25, None), drawn)


def test_all_implementations_give_the_same() -> None:
    x, residual = rows.numbers((7, 1500), "float32", 0), rows.numbers((7, 1500), "float32", 1)
    found = []
    for name in heed.ops.backends.current().FUSED_OPS:
        with heed.set_implementation("auto" if name == "native" else name):
            found.append(step(x, residual))
    for other in found[1:]:
        for one, theirs in zip(found[0], other, strict=True):
            np.testing.assert_allclose(one, theirs, atol=1e-5)


def test_what_is_dropped_reaches_nothing(implementation: str) -> None:
    x, residual = np.full((20, 30), np.nan, "float32"), np.ones((20, 30), "float32")
    keep = keep_mask((20, 30), 0.5, 5)
    x[keep] = 1
    y, of_x, of_residual = step(
        keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(residual), rate=0.5
    )
    np.testing.assert_array_equal(y, np.where(keep, 3.0, 1.0))
    np.testing.assert_array_equal(of_x, np.where(keep, 12.0, 0.0))
    np.testing.assert_array_equal(of_residual, np.where(keep, 6.0, 2.0))


def test_a_rate_of_0_drops_nothing(implementation: str) -> None:
    x = rows.numbers((3, 4), "float32", 0)
    np.testing.assert_array_equal(ops.dropout(x), x)
    np.testing.assert_array_equal(ops.dropout(x, residual=x), 2 * x)
    y = ops.dropout(x, 0.1, residual=keras.ops.cast(x, "float16"))
    assert keras.backend.standardize_dtype(y.dtype) == "float32"


def test_second_derivatives(implementation: str) -> None:
    """With respect to the incoming gradient: the op is linear in everything else."""
    x, residual, d_y = (rows.numbers((3, 4), "float64", i) for i in range(3))
    directions = [np.random.default_rng(i).normal(size=(3, 4)) for i in (4, 5)]
    of_x, of_residual, of_d_y = second_derivatives(
        lambda x, residual: ops.dropout(keras.ops.square(x), 0.4, seed=1, residual=residual),
        [x, residual],
        d_y,
        directions,
    )
    factor, x, d_y = keep_mask((3, 4), 0.4, 1) / 0.6, np.asarray(x), np.asarray(d_y)
    np.testing.assert_allclose(of_x, 2 * factor * d_y * directions[0])
    assert of_residual is None or not np.any(np.asarray(of_residual))
    np.testing.assert_allclose(of_d_y, 2 * factor * x * directions[0] + directions[1])


@on_tensorflow
@pytest.mark.parametrize("count", [1, 2])
def test_sizes_that_are_not_known_while_tracing(implementation: str, count: int) -> None:
    run = tf.function(step, [tf.TensorSpec([None, None, None])] * count)
    with traced() as graphs:
        run.get_concrete_function()
    assert graphs.native == ({"HeedDropout"} if implementation == "native" else set())
    for shape in ((2, 3, 5), (1, 1, 1), (0, 4, 7), (2, 0, 3), (2, 3, 0)):
        inputs = [rows.numbers(shape, "float32", i) for i in range(count)]
        for one, other in zip(step(*inputs), run(*inputs), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)
    if count == 2:
        with pytest.raises(tf.errors.InvalidArgumentError):
            run(tf.ones((1, 2, 3)), tf.ones((1, 2, 4)))


@on_tensorflow
@pytest.mark.slow
def test_xla_compiles_it(implementation: str) -> None:
    inputs = rows.numbers((3, 9), "float32", 0), rows.numbers((3, 9), "float32", 1)
    with traced() as graphs:
        found = tf.function(step, jit_compile=True)(*inputs)
    assert not graphs.native
    for one, other in zip(found, step(*inputs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@native_only
@pytest.mark.parametrize("dtype", rows.DTYPES)
@pytest.mark.parametrize("shape", [(700, 300), (3, 100_000)])
@on_tensorflow
def test_the_same_bits_for_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, dtype: str, shape: tuple[int, ...]
) -> None:
    from heed.ops.backends.tensorflow.native import library

    inputs = [rows.numbers(shape, dtype, i) for i in range(2)]
    found = set()
    for threads in (1, 2, 5, 2):
        monkeypatch.setattr(library, "threads", lambda threads=threads: threads)
        found.add(tuple(rows.bits(*step(*inputs))))
    assert len(found) == 1


@on_tensorflow
@native_only
@pytest.mark.parametrize("kept_by_another", [False, True])
@pytest.mark.parametrize("has_residual", [False, True])
def test_it_reuses_the_memory_of_inputs_without_other_readers(
    has_residual: bool, kept_by_another: bool
) -> None:
    def build() -> Any:
        x = tf.multiply(tf.compat.v1.random_uniform((100, 300)), 3.0, name="taken")
        given = {"residual": x} if has_residual else {}
        y = ops.dropout(tf.ones((100, 300)) if has_residual else x, 0.5, seed=1, **given)
        results = [tf.reduce_sum(y)]
        if kept_by_another:
            with tf.control_dependencies([y]):
                results.append(tf.reduce_sum(tf.identity(x)))
        return results

    found = places(build)
    (made,) = (name for name in found if name.endswith("HeedDropout"))
    assert (found[made] == found["taken"]) != kept_by_another


def test_the_layer_drops_and_adds_in_training_alone(implementation: str) -> None:
    x, residual = (rows.numbers((4, 50), "float32", i) for i in range(2))
    one, other = Dropout(0.5, seed=3), Dropout(0.5, seed=3)
    np.testing.assert_array_equal(one(x), x)
    np.testing.assert_array_equal(one.add(residual, x), residual + x)
    dropped = np.asarray(one(x, training=True))
    assert 0.3 < (dropped == 0).mean() < 0.7
    np.testing.assert_allclose(other.add(residual, x, True), residual + dropped, atol=1e-6)
    assert (np.asarray(one(x, training=True)) != dropped).any()
    stock = keras.layers.Dropout(0.5, seed=3, name=one.name)
    assert one.get_config() == stock.get_config()
    assert Dropout.from_config(one.get_config()).get_config() == one.get_config()
    with pytest.raises(ValueError, match=r"`noise_shape` must be None"):
        Dropout(0.5, noise_shape=(1, 50))


def cases() -> dict[str, tuple[Callable[[], Any], type[Exception], str]]:
    x = np.zeros((2, 5), "float32")

    def call(x: Any = x, rate: Any = 0.5, **options: Any) -> Callable[[], Any]:
        return lambda: ops.dropout(x, rate, **options)

    return {
        "integers": (call(np.zeros((2, 5), int)), TypeError, "`x` must hold floating-point"),
        "no rows": (call(np.float32(1)), ValueError, r"`x` must have shape \(..., D\)"),
        "rate of 1": (call(rate=1.0), ValueError, "Received: rate=1.0"),
        "rate below 0": (call(rate=-0.1), ValueError, "Received: rate=-0.1"),
        "rate no number": (call(rate=None), ValueError, "Received: rate=None"),
        "residual": (call(residual=x[:1]), ValueError, r"`residual` .*residual.shape=\(1, 5\)"),
        "rank of residual": (call(residual=x[0]), ValueError, r"residual.shape=\(5,\)"),
        "integer residual": (call(residual=x.astype(int)), TypeError, "`residual` must hold"),
        "real seed": (call(seed=0.5), ValueError, "Received: seed=0.5"),
        "three words": (call(seed=np.zeros(3, int)), ValueError, "`seed` must be an integer"),
    }


@pytest.mark.parametrize("name", cases())
def test_bad_input_is_named(implementation: str, name: str) -> None:
    call, error, match = cases()[name]
    with pytest.raises(error, match=match):
        call()
