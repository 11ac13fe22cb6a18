"""Softmax cross-entropy: values and gradients, edge cases, memory, errors."""

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
from tests import reference, tolerances
from tests.backend import on_tensorflow, tf, vjp
from tests.graphs import traced
from tests.ops import rows
from tests.ops.test_attention_gradients import expected_second_derivatives, second_derivatives

native_only = pytest.mark.skipif(
    heed.info()["implementation"] != "native", reason=f"no native kernels: {heed.info()['reason']}"
)
BOTH = {"HeedCrossEntropy", "HeedCrossEntropyGradient"}


def labels_for(shape: tuple[int, ...], seed: int, ignored: int | None = None) -> np.ndarray:
    """Return labels for logits of this shape; a third of them ignored if there is an ignored label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, shape[-1], shape[:-1])
    return (
        labels if ignored is None else np.where(rng.random(labels.shape) < 1 / 3, ignored, labels)
    )


def step(logits: Any, labels: Any, **options: Any) -> list[Any]:
    """Return losses, and the gradient of their weighted sum."""
    losses, pull = vjp(lambda x: ops.softmax_cross_entropy(x, labels, **options), logits)
    weights = keras.ops.arange(keras.ops.size(losses)) + 1
    return [losses, *pull(keras.ops.reshape(weights, keras.ops.shape(losses)))]


@given(
    shape=rows.shapes(),
    dtype=st.sampled_from(rows.DTYPES),
    smoothing=st.sampled_from([0.0, 0.1, 0.75]),
    ignored=st.sampled_from([None, 0, -1, -100]),
    seed=st.integers(0, 99),
)
def test_losses_and_gradients_are_those_of_the_reference(
    implementation: str,
    shape: tuple[int, ...],
    dtype: str,
    smoothing: float,
    ignored: int | None,
    seed: int,
) -> None:
    logits, labels = rows.numbers(shape, dtype, seed, 3.0), labels_for(shape, seed, ignored)
    losses, (gradient,), d_losses = rows.differentiate(
        lambda x: ops.softmax_cross_entropy(
            x, labels, label_smoothing=smoothing, ignore_class=ignored
        ),
        [logits],
        seed + 1,
    )
    wide = "float64" if dtype == "float64" else "float32"
    assert keras.backend.standardize_dtype(losses.dtype) == wide
    assert keras.backend.standardize_dtype(gradient.dtype) == dtype
    x = tolerances.to_float64(logits)
    expected = reference.cross_entropy(x, labels, smoothing, ignored)
    tolerances.assert_statistics(losses, expected, dtype)
    expected = reference.cross_entropy_backward(
        x, labels, tolerances.to_float64(d_losses), smoothing, ignored
    )
    tolerances.assert_gradients(gradient, expected, dtype)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_second_derivatives(implementation: str, smoothing: float) -> None:
    logits, labels = np.random.default_rng(0).normal(size=(2, 3, 4)), [[0, 3, -1], [2, 2, 1]]
    d_losses, direction = (
        np.random.default_rng(s).normal(size=n) for s, n in ((1, (2, 3)), (2, (2, 3, 4)))
    )
    options = {"label_smoothing": smoothing, "ignore_class": -1}

    def backward(logits: np.ndarray, d_losses: np.ndarray) -> list[np.ndarray]:
        return [reference.cross_entropy_backward(logits, labels, d_losses, smoothing, -1)]

    actual = second_derivatives(
        lambda x: ops.softmax_cross_entropy(x, labels, **options),
        [keras.ops.convert_to_tensor(logits)],
        keras.ops.convert_to_tensor(d_losses),
        [direction],
    )
    for a, b in zip(
        actual,
        expected_second_derivatives(backward, [logits, d_losses], [direction]),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_it_is_that_of_keras(implementation: str, smoothing: float) -> None:
    logits, labels = rows.numbers((2, 3, 7), "float32", 0), labels_for((2, 3, 7), 1)
    of_keras = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=smoothing, reduction="none"
    )
    expected = of_keras(np.eye(7, dtype="float32")[labels], logits)
    found = ops.softmax_cross_entropy(logits, labels, label_smoothing=smoothing)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("large", [1e4, -1e6, 3e37])
def test_large_logits_lose_nothing_but_their_own_rounding(
    implementation: str, large: float
) -> None:
    logits = (np.asarray(rows.numbers((4, 100), "float32", 0)) * 10 + large).astype("float32")
    labels = labels_for(logits.shape, 1)
    found, gradient = step(keras.ops.convert_to_tensor(logits), labels, label_smoothing=0.1)
    expected = reference.cross_entropy(logits, labels, 0.1)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)
    weights = np.arange(1, 5)
    expected = reference.cross_entropy_backward(logits, labels, weights, 0.1)
    np.testing.assert_allclose(gradient, expected, atol=1e-5)


def test_a_logit_of_minus_infinity_is_a_class_that_cannot_be(implementation: str) -> None:
    logits = np.array([[1.0, -np.inf, 2.0], [1.0, -np.inf, 2.0]], "float32")
    losses, gradient = step(keras.ops.convert_to_tensor(logits), [0, 1])
    np.testing.assert_allclose(losses, [np.log1p(np.exp(1.0)), np.inf], rtol=1e-6)
    assert gradient[0, 1] == 0
    assert np.isfinite(gradient[0]).all()
    smooth, _ = step(keras.ops.convert_to_tensor(logits), [0, 0], label_smoothing=0.1)
    assert np.isinf(smooth).all()


def test_what_is_not_a_number_stays_in_its_row_and_out_of_rows_that_do_not_count(
    implementation: str,
) -> None:
    logits = np.array(rows.numbers((4, 20), "float32", 0))
    logits[0, 3], logits[1, 5], logits[2] = np.nan, np.nan, np.inf
    losses, gradient = step(keras.ops.convert_to_tensor(logits), [3, -1, 1, 2], ignore_class=-1)
    assert np.isnan(losses).tolist() == [True, False, True, False]
    assert losses[1] == 0
    assert np.isnan(gradient).all(1).tolist() == [True, False, True, False]
    np.testing.assert_array_equal(gradient[1], np.zeros(20))
    assert np.isfinite(gradient[3]).all()


@on_tensorflow
def test_sizes_that_are_not_known_while_tracing(implementation: str) -> None:
    specs = [tf.TensorSpec([None, None, None]), tf.TensorSpec([None, None], tf.int64)]
    run = tf.function(lambda x, y: step(x, y, label_smoothing=0.1), specs)
    with traced() as graphs:
        run.get_concrete_function()
    assert graphs.native == (BOTH if implementation == "native" else set())
    for shape in ((2, 3, 5), (1, 1, 1), (0, 4, 7), (2, 0, 3)):
        logits, labels = rows.numbers(shape, "float32", 0), labels_for(shape, 1)
        eager, graph = step(logits, labels, label_smoothing=0.1), run(logits, labels)
        for one, other in zip(eager, graph, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)
    for wrong in (5, -1, 2**32, -(2**40)):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"`labels` must be in \[0, .*5.*`ignore_class`"
        ):
            run(rows.numbers((1, 2, 5), "float32", 0), [[0, wrong]])
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(rows.numbers((1, 2, 5), "float32", 0), [[0, 1, 2]])


@on_tensorflow
@pytest.mark.slow
def test_xla_compiles_it(implementation: str) -> None:
    logits, labels = rows.numbers((3, 9), "float32", 0), tf.constant(labels_for((3, 9), 1, -1))
    options = {"label_smoothing": 0.1, "ignore_class": -1}
    compiled = tf.function(lambda x, y: step(x, y, **options), jit_compile=True)
    with traced() as graphs:
        found = compiled(logits, labels)
    assert not graphs.native
    for one, other in zip(found, step(logits, labels, **options), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@native_only
@pytest.mark.parametrize("dtype", rows.DTYPES)
@pytest.mark.parametrize("shape", [(64, 2000), (3, 100_000)])
@on_tensorflow
def test_the_same_bits_for_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, dtype: str, shape: tuple[int, ...]
) -> None:
    from heed.ops.backends.tensorflow.native import library

    logits, labels = rows.numbers(shape, dtype, 0), labels_for(shape, 1)
    found = set()
    for threads in (1, 2, 5, 2):
        monkeypatch.setattr(library, "threads", lambda threads=threads: threads)
        found.add(tuple(rows.bits(*step(logits, labels, label_smoothing=0.1))))
    assert len(found) == 1


def places(build: Callable[[], tuple[tf.Tensor, list[tf.Tensor]]]) -> dict[str, int]:
    """Return the memory address of the first result of each named node of a graph, including the first fetch."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fetched = build()
        metadata = tf.compat.v1.RunMetadata()
        full = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
        session.run(fetched, options=full, run_metadata=metadata)
    found = {}
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            if node.output:
                description = node.output[0].tensor_description.allocation_description
                found[node.node_name] = description.ptr
    return found


@on_tensorflow
@native_only
@pytest.mark.parametrize("kept", [False, True])
def test_the_gradient_reuses_the_memory_of_logits_without_other_readers(kept: bool) -> None:
    def build() -> Any:
        x = tf.compat.v1.random_uniform((100, 300), name="x")
        logits = tf.multiply(x, 3.0, name="logits")
        losses = ops.softmax_cross_entropy(logits, tf.zeros(100, tf.int32))
        gradient = tf.gradients(losses, logits)[0]
        results = [tf.reduce_sum(gradient)]
        if kept:
            with tf.control_dependencies([gradient]):
                results.append(tf.reduce_sum(tf.identity(logits)))
        return results

    found = places(build)
    (gradient,) = (name for name in found if name.endswith("HeedCrossEntropyGradient"))
    assert (found[gradient] == found["logits"]) != kept


def cases() -> dict[str, tuple[Callable[[], Any], type[Exception], str]]:
    logits = np.zeros((2, 5), "float32")

    def call(x: Any = logits, labels: Any = (0, 1), **options: Any) -> Callable[[], Any]:
        return lambda: ops.softmax_cross_entropy(x, labels, **options)

    return {
        "integer logits": (call(np.zeros((2, 5), int)), TypeError, "`logits` must hold floating"),
        "no rows": (call(np.float32(1), 0), ValueError, "`logits` must have shape"),
        "no classes": (call(logits[:, :0]), ValueError, r"C >= 1. Received: logits.shape=\(2, 0\)"),
        "rank of labels": (call(labels=[[0, 1]]), ValueError, r"labels.shape=\(1, 2\)"),
        "count of labels": (call(labels=[0, 1, 2]), ValueError, r"labels.shape=\(3,\)"),
        "real labels": (call(labels=[0.0, 1.0]), TypeError, "`labels` must hold integers"),
        "label too large": (call(labels=[0, 5]), ValueError, r"\[0, 5\).*Received: labels with 5"),
        "label below 0": (call(labels=[-1, 0]), ValueError, "Received: labels with -1"),
        "not the ignored one": (
            call(labels=[-2, 0], ignore_class=-1),
            ValueError,
            "labels with -2",
        ),
        "smoothing of 1": (call(label_smoothing=1.0), ValueError, "Received: label_smoothing=1.0"),
        "smoothing below 0": (call(label_smoothing=-0.1), ValueError, "label_smoothing=-0.1"),
        "ignored no integer": (call(ignore_class=1.5), ValueError, "Received: ignore_class=1.5"),
        "ignored too large": (call(ignore_class=2**31), ValueError, "ignore_class=2147483648"),
    }


@pytest.mark.parametrize("name", cases())
def test_bad_input_is_named(implementation: str, name: str) -> None:
    call, error, match = cases()[name]
    with pytest.raises(error, match=match):
        call()
