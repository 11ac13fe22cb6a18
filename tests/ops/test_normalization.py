"""Layer and RMS normalisation: values and gradients, edge cases, repeatability, errors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import heed
from heed import ops
from tests import reference, tolerances
from tests.backend import on_tensorflow, tf, vjp
from tests.graphs import traced
from tests.ops import rows
from tests.ops.test_attention_gradients import expected_second_derivatives, second_derivatives

native_only = pytest.mark.skipif(
    heed.info()["implementation"] != "native", reason=f"no native kernels: {heed.info()['reason']}"
)
BOTH = {"HeedNormalization", "HeedNormalizationGradient"}
# The vectors to pass: none, the scale, both.
GIVEN = (0, 1, 2)


def normalize(rms: bool, epsilon: float, x: Any, *vectors: Any) -> Any:
    function = ops.rms_normalization if rms else ops.layer_normalization
    return function(x, *vectors, epsilon=epsilon)


def step(x: Any, *vectors: Any, rms: bool = False) -> list[Any]:
    """Return the result, and the gradients of the sum of its squares."""
    y, pull = vjp(functools.partial(normalize, rms, 1e-5), x, *vectors)
    return [y, *pull(2 * y)]


@given(
    shape=rows.shapes(),
    dtype=st.sampled_from(rows.DTYPES),
    rms=st.booleans(),
    given_vectors=st.sampled_from(GIVEN),
    epsilon=st.sampled_from([1e-6, 0.1]),
    seed=st.integers(0, 99),
)
def test_results_and_gradients_are_those_of_the_reference(
    implementation: str,
    shape: tuple[int, ...],
    dtype: str,
    rms: bool,
    given_vectors: int,
    epsilon: float,
    seed: int,
) -> None:
    kind = "float64" if dtype == "float64" else "float32"
    # Rows of width two become plus and minus one: their gradient is only rounding.
    epsilon = epsilon if shape[-1] > 2 else 0.5
    x = rows.numbers(shape, dtype, seed) + keras.ops.cast(0.5, dtype)
    vectors = [
        rows.numbers(shape[-1:], kind, seed + i + 1) for i in range(min(given_vectors, 2 - rms))
    ]
    y, gradients, d_y = rows.differentiate(
        functools.partial(normalize, rms, epsilon), [x, *vectors], seed + 5
    )
    assert y.dtype == x.dtype
    exact = [tolerances.to_float64(tensor) for tensor in (x, *vectors)]
    expected = reference.normalization(*exact, epsilon=epsilon, rms=rms)
    tolerances.assert_values(y, expected, dtype)
    scale = exact[1] if vectors else None
    wanted = reference.normalization_backward(
        exact[0], tolerances.to_float64(d_y), scale, epsilon, rms
    )
    # The gradients of the vectors are sums over rows; that of x is divided by a deviation that may be small.
    for name, gradient, of_reference in zip(
        ("x", "scale", "offset"), gradients, wanted, strict=False
    ):
        assert gradient.shape == of_reference.shape
        unit = max(1.0, np.abs(of_reference).max(initial=0.0))
        tolerances.assert_gradients(
            tolerances.to_float64(gradient) / unit, of_reference / unit, dtype, name
        )


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("given_vectors", GIVEN)
def test_second_derivatives(implementation: str, rms: bool, given_vectors: int) -> None:
    rng = np.random.default_rng(0)
    arguments = [
        rng.normal(size=(2, 3, 4)),
        *(rng.normal(size=4) for _ in range(min(given_vectors, 2 - rms))),
    ]
    d_y, directions = rng.normal(size=(2, 3, 4)), [rng.normal(size=x.shape) for x in arguments]

    def backward(x: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
        scale = others[0] if len(others) > 1 else None
        found = reference.normalization_backward(x, others[-1], scale, 0.1, rms)
        return list(found[: len(arguments)])

    actual = second_derivatives(
        functools.partial(normalize, rms, 0.1),
        [keras.ops.convert_to_tensor(x) for x in arguments],
        keras.ops.convert_to_tensor(d_y),
        directions,
    )
    expected = expected_second_derivatives(backward, [*arguments, d_y], directions)
    for a, b in zip(actual, expected, strict=True):
        a = (
            np.zeros(b.shape) if a is None else a
        )  # the offset, which no first derivative depends on
        np.testing.assert_allclose(a, b, atol=1e-8, rtol=1e-6)


def test_it_is_that_of_keras(implementation: str) -> None:
    x, gamma, beta = (rows.numbers(n, "float32", s) for s, n in enumerate(((2, 3, 7), (7,), (7,))))
    expected = keras.ops.layer_normalization(x, gamma, beta, epsilon=1e-5)
    found = ops.layer_normalization(x, gamma, beta, epsilon=1e-5)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    expected = keras.ops.rms_normalization(x, gamma, epsilon=1e-5)
    np.testing.assert_allclose(ops.rms_normalization(x, gamma, epsilon=1e-5), expected, atol=2e-6)


def test_a_large_mean_costs_only_its_own_rounding(implementation: str) -> None:
    """Except for its own rounding; computing with its squares would lose them all."""
    x = (np.asarray(rows.numbers((5, 300), "float32", 0)) + 1e4).astype("float32")
    found = ops.layer_normalization(x)
    np.testing.assert_allclose(found, reference.normalization(x), atol=2e-3)
    same = np.full((2, 300), 1e4, "float32")
    np.testing.assert_allclose(ops.layer_normalization(same), np.zeros((2, 300)), atol=1e-6)


def test_what_is_not_a_number_stays_in_its_row(implementation: str) -> None:
    x = np.array(rows.numbers((4, 20), "float32", 0))
    x[1, 3], x[2, 5] = np.nan, np.inf
    y, gradient = step(keras.ops.convert_to_tensor(x))
    for found in (y, gradient):
        assert np.isnan(found).any(1).tolist() == [False, True, True, False]
    assert np.isfinite(np.asarray(y)[[0, 3]]).all()


@on_tensorflow
@pytest.mark.parametrize("rms", [False, True])
def test_sizes_that_are_not_known_while_tracing(implementation: str, rms: bool) -> None:
    specs = [tf.TensorSpec([None, None, None]), tf.TensorSpec([None])]
    run = tf.function(functools.partial(step, rms=rms), specs)
    with traced() as graphs:
        run.get_concrete_function()
    assert graphs.native == (BOTH if implementation == "native" else set())
    for shape in ((2, 3, 5), (1, 1, 1), (0, 4, 7), (2, 0, 3)):
        inputs = rows.numbers(shape, "float32", 0), rows.numbers(shape[-1:], "float32", 1)
        for one, other in zip(step(*inputs, rms=rms), run(*inputs), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(rows.numbers((1, 2, 5), "float32", 0), rows.numbers((4,), "float32", 1))


@on_tensorflow
@pytest.mark.slow
def test_xla_compiles_it(implementation: str) -> None:
    inputs = rows.numbers((3, 9), "float32", 0), rows.numbers((9,), "float32", 1)
    with traced() as graphs:
        found = tf.function(step, jit_compile=True)(*inputs)
    assert not graphs.native
    for one, other in zip(found, step(*inputs), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


@native_only
@pytest.mark.parametrize("dtype", rows.DTYPES)
@pytest.mark.parametrize("shape", [(700, 300), (3, 100_000), (20_000, 8)])
@on_tensorflow
def test_the_same_bits_for_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, dtype: str, shape: tuple[int, ...]
) -> None:
    from heed.ops.backends.tensorflow.native import library

    kind = "float64" if dtype == "float64" else "float32"
    inputs = [rows.numbers(shape, dtype, 0), *(rows.numbers(shape[1:], kind, i) for i in (1, 2))]
    found = set()
    for threads in (1, 2, 5, 2):
        monkeypatch.setattr(library, "threads", lambda threads=threads: threads)
        found.add(tuple(rows.bits(*step(*inputs))))
    assert len(found) == 1


def cases() -> dict[str, tuple[Callable[[], Any], type[Exception], str]]:
    x = np.zeros((2, 5), "float32")

    def layer(x: Any = x, *vectors: Any, **options: Any) -> Callable[[], Any]:
        return lambda: ops.layer_normalization(x, *vectors, **options)

    def rms(x: Any = x, *vectors: Any, **options: Any) -> Callable[[], Any]:
        return lambda: ops.rms_normalization(x, *vectors, **options)

    return {
        "integers": (layer(np.zeros((2, 5), int)), TypeError, "`x` must hold floating-point"),
        "no rows": (rms(np.float32(1)), ValueError, r"`x` must have shape \(..., D\)"),
        "no features": (layer(x[:, :0]), ValueError, r"D >= 1. Received: x.shape=\(2, 0\)"),
        "gamma": (layer(x, np.ones(4, "float32")), ValueError, r"`gamma` .*gamma.shape=\(4,\)"),
        "beta": (layer(x, None, np.ones((1, 5), "float32")), ValueError, r"beta.shape=\(1, 5\)"),
        "integer gamma": (layer(x, np.ones(5, int)), TypeError, "`gamma` must hold floating"),
        "scale": (rms(x, np.ones(4, "float32")), ValueError, r"`scale` .*scale.shape=\(4,\)"),
        "epsilon of 0": (layer(epsilon=0.0), ValueError, "Received: epsilon=0.0"),
        "epsilon below 0": (rms(epsilon=-1e-6), ValueError, "Received: epsilon=-1e-06"),
        "epsilon too small": (layer(epsilon=1e-40), ValueError, r"\[1e-30, 1e30\].*epsilon=1e-40"),
        "epsilon no number": (rms(epsilon="1"), ValueError, "Received: epsilon='1'"),
    }


@pytest.mark.parametrize("name", cases())
def test_bad_input_is_named(implementation: str, name: str) -> None:
    call, error, match = cases()[name]
    with pytest.raises(error, match=match):
        call()
