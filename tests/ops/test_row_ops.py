"""Fused row-wise ops: values and gradients, edge cases, memory, errors."""

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
from heed.layers.dropout import Dropout
from tests import reference, tolerances
from tests.backend import on_tensorflow, tf, vjp
from tests.graphs import traced
from tests.ops.test_attention_gradients import expected_second_derivatives, second_derivatives
from tests.strategies import DTYPES, cast

native_only = pytest.mark.skipif(
    heed.info()["implementation"] != "native", reason=f"no native kernels: {heed.info()['reason']}"
)
# Around the lanes of each instruction set, the column groups of dropout, and the blocks of long sums.
WIDTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 1023, 1025, 4095, 4097)
LEADING = ((), (1,), (5,), (2, 3), (2, 0, 4), (0,), (3, 1, 2))
SHAPES = st.builds(
    lambda leading, width: (*leading, width), st.sampled_from(LEADING), st.sampled_from(WIDTHS)
)
# The vectors of a normalization to pass: none, the scale, both.
GIVEN = (0, 1, 2)


def numbers(shape: tuple[int, ...], dtype: str, seed: int, scale: float = 1.0) -> Any:
    """Return normal random numbers, rounded to the dtype."""
    return keras.ops.convert_to_tensor(
        cast(scale * np.random.default_rng(seed).normal(size=shape), dtype)
    )


def labels_for(shape: tuple[int, ...], seed: int, ignored: int | None = None) -> np.ndarray:
    """Return labels for logits of this shape; a third of them ignored if there is an ignored label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, shape[-1], shape[:-1])
    return (
        labels if ignored is None else np.where(rng.random(labels.shape) < 1 / 3, ignored, labels)
    )


def keep_mask(shape: tuple[int, ...], rate: float, seed: Any) -> np.ndarray:
    """Return the numbers that dropout keeps, read from a tensor of ones."""
    return np.asarray(ops.dropout(np.ones(shape), rate, seed=seed)) > 0


def normalize(rms: bool, epsilon: float, x: Any, *vectors: Any) -> Any:
    function = ops.rms_normalization if rms else ops.layer_normalization
    return function(x, *vectors, epsilon=epsilon)


def differentiate(
    function: Callable[..., Any], arguments: list[Any], seed: int
) -> tuple[Any, list[Any], Any]:
    """Return the result, the gradients of sum(result * cotangent), and the cotangent."""
    result, pull = vjp(function, *arguments)
    cotangent = numbers(tuple(result.shape), keras.backend.standardize_dtype(result.dtype), seed)
    return result, pull(cotangent), cotangent


def of_squares(function: Callable[..., Any], *inputs: Any) -> list[Any]:
    """Return the result, and the gradients of the sum of its squares."""
    y, pull = vjp(function, *inputs)
    return [y, *pull(2 * y)]


def drop(x: Any, *residual: Any, rate: float = 0.3) -> list[Any]:
    given = lambda x, residual=None: ops.dropout(x, rate, seed=5, residual=residual)  # noqa: E731
    return of_squares(given, x, *residual)


def losses_of(logits: Any, labels: Any, **options: Any) -> list[Any]:
    """Return losses, and the gradient of their weighted sum."""
    losses, pull = vjp(lambda x: ops.softmax_cross_entropy(x, labels, **options), logits)
    weights = keras.ops.arange(keras.ops.size(losses)) + 1
    return [losses, *pull(keras.ops.reshape(weights, keras.ops.shape(losses)))]


# --- normalization ------------------------------------------------------------------------------


@given(
    shape=SHAPES,
    dtype=st.sampled_from(DTYPES),
    rms=st.booleans(),
    given_vectors=st.sampled_from(GIVEN),
    epsilon=st.sampled_from([1e-6, 0.1]),
    seed=st.integers(0, 99),
)
def test_normalization_is_that_of_the_reference(
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
    x = numbers(shape, dtype, seed) + keras.ops.cast(0.5, dtype)
    vectors = [numbers(shape[-1:], kind, seed + i + 1) for i in range(min(given_vectors, 2 - rms))]
    y, gradients, d_y = differentiate(
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
def test_second_derivatives_of_normalization(
    implementation: str, rms: bool, given_vectors: int
) -> None:
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
        # No first derivative depends on the offset.
        np.testing.assert_allclose(np.zeros(b.shape) if a is None else a, b, atol=1e-8, rtol=1e-6)


def test_a_large_mean_costs_only_its_own_rounding(implementation: str) -> None:
    """Computing with its squares would lose all digits."""
    x = (np.asarray(numbers((5, 300), "float32", 0)) + 1e4).astype("float32")
    found = ops.layer_normalization(x)
    np.testing.assert_allclose(found, reference.normalization(x), atol=2e-3)
    same = np.full((2, 300), 1e4, "float32")
    np.testing.assert_allclose(ops.layer_normalization(same), np.zeros((2, 300)), atol=1e-6)


def test_what_is_not_a_number_stays_in_its_row(implementation: str) -> None:
    x = np.array(numbers((4, 20), "float32", 0))
    x[1, 3], x[2, 5] = np.nan, np.inf
    y, gradient = of_squares(ops.layer_normalization, keras.ops.convert_to_tensor(x))
    for found in (y, gradient):
        assert np.isnan(found).any(1).tolist() == [False, True, True, False]
    assert np.isfinite(np.asarray(y)[[0, 3]]).all()


# --- dropout ------------------------------------------------------------------------------------


@given(
    shape=SHAPES,
    dtype=st.sampled_from(DTYPES),
    rate=st.sampled_from([0.1, 0.5, 0.9]),
    seed=st.integers(0, 2**40),
    has_residual=st.booleans(),
)
def test_dropout_follows_its_formula(
    implementation: str,
    shape: tuple[int, ...],
    dtype: str,
    rate: float,
    seed: int,
    has_residual: bool,
) -> None:
    inputs = [numbers(shape, dtype, i) for i in range(1 + has_residual)]
    y, gradients, d_y = differentiate(
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


def test_a_seed_is_two_words_or_drawn(implementation: str) -> None:
    words = keras.ops.convert_to_tensor([1, 1], "uint32")
    expected = keep_mask((200, 100), 0.25, 2**32 + 1)
    np.testing.assert_array_equal(keep_mask((200, 100), 0.25, words), expected)
    keras.utils.set_random_seed(4)
    drawn = keep_mask((200, 100), 0.25, None)
    assert (drawn != keep_mask((200, 100), 0.25, None)).any()
    keras.utils.set_random_seed(4)
    np.testing.assert_array_equal(keep_mask((200, 100), 0.25, None), drawn)


def test_all_implementations_give_the_same() -> None:
    x, residual = numbers((7, 1500), "float32", 0), numbers((7, 1500), "float32", 1)
    found = []
    for name in heed.ops.backends.current().FUSED_OPS:
        with heed.set_implementation("auto" if name == "native" else name):
            found.append(drop(x, residual))
    for other in found[1:]:
        for one, theirs in zip(found[0], other, strict=True):
            np.testing.assert_allclose(one, theirs, atol=1e-5)


def test_what_is_dropped_reaches_nothing(implementation: str) -> None:
    x, residual = np.full((20, 30), np.nan, "float32"), np.ones((20, 30), "float32")
    keep = keep_mask((20, 30), 0.5, 5)
    x[keep] = 1
    y, of_x, of_residual = drop(
        keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(residual), rate=0.5
    )
    np.testing.assert_array_equal(y, np.where(keep, 3.0, 1.0))
    np.testing.assert_array_equal(of_x, np.where(keep, 12.0, 0.0))
    np.testing.assert_array_equal(of_residual, np.where(keep, 6.0, 2.0))


def test_a_rate_of_0_drops_nothing(implementation: str) -> None:
    x = numbers((3, 4), "float32", 0)
    np.testing.assert_array_equal(ops.dropout(x), x)
    np.testing.assert_array_equal(ops.dropout(x, residual=x), 2 * x)
    y = ops.dropout(x, 0.1, residual=keras.ops.cast(x, "float16"))
    assert keras.backend.standardize_dtype(y.dtype) == "float32"


def test_second_derivatives_of_dropout(implementation: str) -> None:
    """With respect to the incoming gradient: the op is linear in everything else."""
    x, residual, d_y = (numbers((3, 4), "float64", i) for i in range(3))
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


def test_the_layer_drops_and_adds_in_training_alone(implementation: str) -> None:
    x, residual = (numbers((4, 50), "float32", i) for i in range(2))
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


# --- cross-entropy ------------------------------------------------------------------------------


@given(
    shape=SHAPES,
    dtype=st.sampled_from(DTYPES),
    smoothing=st.sampled_from([0.0, 0.1, 0.75]),
    ignored=st.sampled_from([None, 0, -1, -100]),
    seed=st.integers(0, 99),
)
def test_cross_entropy_is_that_of_the_reference(
    implementation: str,
    shape: tuple[int, ...],
    dtype: str,
    smoothing: float,
    ignored: int | None,
    seed: int,
) -> None:
    logits, labels = numbers(shape, dtype, seed, 3.0), labels_for(shape, seed, ignored)
    losses, (gradient,), d_losses = differentiate(
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
def test_second_derivatives_of_cross_entropy(implementation: str, smoothing: float) -> None:
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
    expected = expected_second_derivatives(backward, [logits, d_losses], [direction])
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("large", [1e4, -1e6, 3e37])
def test_large_logits_lose_nothing_but_their_own_rounding(
    implementation: str, large: float
) -> None:
    logits = (np.asarray(numbers((4, 100), "float32", 0)) * 10 + large).astype("float32")
    labels = labels_for(logits.shape, 1)
    found, gradient = losses_of(keras.ops.convert_to_tensor(logits), labels, label_smoothing=0.1)
    expected = reference.cross_entropy(logits, labels, 0.1)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)
    weights = np.arange(1, 5)
    expected = reference.cross_entropy_backward(logits, labels, weights, 0.1)
    np.testing.assert_allclose(gradient, expected, atol=1e-5)


def test_a_logit_of_minus_infinity_is_a_class_that_cannot_be(implementation: str) -> None:
    logits = np.array([[1.0, -np.inf, 2.0], [1.0, -np.inf, 2.0]], "float32")
    losses, gradient = losses_of(keras.ops.convert_to_tensor(logits), [0, 1])
    np.testing.assert_allclose(losses, [np.log1p(np.exp(1.0)), np.inf], rtol=1e-6)
    assert gradient[0, 1] == 0
    assert np.isfinite(gradient[0]).all()
    smooth, _ = losses_of(keras.ops.convert_to_tensor(logits), [0, 0], label_smoothing=0.1)
    assert np.isinf(smooth).all()


def test_what_is_not_a_number_stays_out_of_rows_that_do_not_count(implementation: str) -> None:
    logits = np.array(numbers((4, 20), "float32", 0))
    logits[0, 3], logits[1, 5], logits[2] = np.nan, np.nan, np.inf
    tensor = keras.ops.convert_to_tensor(logits)
    losses, gradient = losses_of(tensor, [3, -1, 1, 2], ignore_class=-1)
    assert np.isnan(losses).tolist() == [True, False, True, False]
    assert losses[1] == 0
    assert np.isnan(gradient).all(1).tolist() == [True, False, True, False]
    np.testing.assert_array_equal(gradient[1], np.zeros(20))
    assert np.isfinite(gradient[3]).all()


@on_tensorflow
def test_wrong_labels_of_a_graph_are_named(implementation: str) -> None:
    specs = [tf.TensorSpec([None, None, None]), tf.TensorSpec([None, None], tf.int64)]
    run = tf.function(ops.softmax_cross_entropy, specs)
    logits = numbers((1, 2, 5), "float32", 0)
    np.testing.assert_array_equal(
        run(logits, [[0, 4]]), ops.softmax_cross_entropy(logits, [[0, 4]])
    )
    for wrong in (5, -1, 2**32, -(2**40)):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"`labels` must be in \[0, .*5.*`ignore_class`"
        ):
            run(logits, [[0, wrong]])
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(logits, [[0, 1, 2]])


# --- all of them --------------------------------------------------------------------------------


@pytest.mark.parametrize("rms", [False, True])
def test_they_are_those_of_keras(implementation: str, rms: bool) -> None:
    x, gamma, beta = (numbers(n, "float32", s) for s, n in enumerate(((2, 3, 7), (7,), (7,))))
    vectors = [gamma] if rms else [gamma, beta]
    of_keras = keras.ops.rms_normalization if rms else keras.ops.layer_normalization
    expected = of_keras(x, *vectors, epsilon=1e-5)
    np.testing.assert_allclose(normalize(rms, 1e-5, x, *vectors), expected, atol=2e-6)
    labels, smoothing = labels_for((2, 3, 7), 1), 0.1 * rms
    entropy = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=smoothing, reduction="none"
    )
    found = ops.softmax_cross_entropy(x, labels, label_smoothing=smoothing)
    expected = entropy(np.eye(7, dtype="float32")[labels], x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


ROWS = tuple(tf.TensorSpec([None] * n) for n in (3, 1)) if tf else (None, None)
# A function of rows and what else it takes, the shape of that for rows of a shape, and its native ops.
GRAPHS: dict[str, tuple[Callable[..., list[Any]], Any, set[str]]] = {
    "layer normalization": (
        functools.partial(of_squares, ops.layer_normalization),
        (ROWS[1], lambda shape: shape[-1:]),
        {"HeedNormalization", "HeedNormalizationGradient"},
    ),
    "RMS normalization": (
        functools.partial(of_squares, ops.rms_normalization),
        (ROWS[1], lambda shape: shape[-1:]),
        {"HeedNormalization", "HeedNormalizationGradient"},
    ),
    "dropout": (drop, None, {"HeedDropout"}),
    "dropout and residual": (drop, (ROWS[0], lambda shape: shape), {"HeedDropout"}),
    "cross-entropy": (
        lambda x: losses_of(x, keras.ops.zeros(keras.ops.shape(x)[:-1], "int32")),
        None,
        {"HeedCrossEntropy", "HeedCrossEntropyGradient"},
    ),
}


@on_tensorflow
@pytest.mark.parametrize("name", GRAPHS)
def test_sizes_that_are_not_known_while_tracing(implementation: str, name: str) -> None:
    step, other, native = GRAPHS[name]
    run = tf.function(step, [ROWS[0], *([] if other is None else other[:1])])
    with traced() as graphs:
        run.get_concrete_function()
    assert graphs.native == (native if implementation == "native" else set())
    for shape in ((2, 3, 5), (1, 1, 1), (0, 4, 7), (2, 0, 3), (2, 3, 0)):
        if shape[-1] == 0 and "dropout" not in name:  # which alone takes rows of nothing
            continue
        inputs = [numbers(shape, "float32", 0)]
        if other is not None:
            inputs.append(numbers(other[1](shape), "float32", 1))
        for one, of_graph in zip(step(*inputs), run(*inputs), strict=True):
            np.testing.assert_allclose(one, of_graph, atol=1e-5)
    if other is not None:
        with pytest.raises(tf.errors.InvalidArgumentError):
            run(tf.ones((1, 2, 3)), tf.ones(other[1]((1, 2, 4))))


def places(build: Callable[[], Any]) -> dict[str, int]:
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


# What an op of this kind makes of numbers whose memory it may take.
IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "HeedDropout": lambda x: ops.dropout(x, 0.5, seed=1),
    "HeedDropout of a residual": lambda x: ops.dropout(
        tf.ones((100, 300)), 0.5, seed=1, residual=x
    ),
    "HeedCrossEntropyGradient": lambda x: tf.gradients(
        ops.softmax_cross_entropy(x, tf.zeros(100, tf.int32)), x
    )[0],
}


@on_tensorflow
@native_only
@pytest.mark.parametrize("kept_by_another", [False, True])
@pytest.mark.parametrize("name", IN_PLACE)
def test_they_reuse_the_memory_of_inputs_without_other_readers(
    name: str, kept_by_another: bool
) -> None:
    def build() -> Any:
        x = tf.multiply(tf.compat.v1.random_uniform((100, 300)), 3.0, name="taken")
        y = IN_PLACE[name](x)
        results = [tf.reduce_sum(y)]
        if kept_by_another:
            with tf.control_dependencies([y]):
                results.append(tf.reduce_sum(tf.identity(x)))
        return results

    found = places(build)
    (made,) = (node for node in found if node.endswith(name.partition(" ")[0]))
    assert (found[made] == found["taken"]) != kept_by_another


X = np.zeros((2, 5), "float32")
ONES = np.ones(5, "float32")
# The function, its arguments and options, the error and its words.
BAD: list[tuple[Any, tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    (ops.layer_normalization, (X.astype(int),), {}, TypeError, "`x` must hold floating-point"),
    (ops.rms_normalization, (np.float32(1),), {}, ValueError, r"`x` must have shape \(..., D\)"),
    (ops.layer_normalization, (X[:, :0],), {}, ValueError, r"D >= 1.*x.shape=\(2, 0\)"),
    (ops.layer_normalization, (X, ONES[:4]), {}, ValueError, r"`gamma` .*gamma.shape=\(4,\)"),
    (ops.layer_normalization, (X, None, ONES[None]), {}, ValueError, r"beta.shape=\(1, 5\)"),
    (ops.layer_normalization, (X, ONES.astype(int)), {}, TypeError, "`gamma` must hold floating"),
    (ops.rms_normalization, (X, ONES[:4]), {}, ValueError, r"`scale` .*scale.shape=\(4,\)"),
    (ops.layer_normalization, (X,), {"epsilon": 0.0}, ValueError, "Received: epsilon=0.0"),
    (ops.rms_normalization, (X,), {"epsilon": -1e-6}, ValueError, "Received: epsilon=-1e-06"),
    (ops.layer_normalization, (X,), {"epsilon": 1e-40}, ValueError, r"\[1e-30, 1e30\].*=1e-40"),
    (ops.rms_normalization, (X,), {"epsilon": "1"}, ValueError, "Received: epsilon='1'"),
    (ops.dropout, (X.astype(int), 0.5), {}, TypeError, "`x` must hold floating-point"),
    (ops.dropout, (np.float32(1), 0.5), {}, ValueError, r"`x` must have shape \(..., D\)"),
    (ops.dropout, (X, 1.0), {}, ValueError, "Received: rate=1.0"),
    (ops.dropout, (X, -0.1), {}, ValueError, "Received: rate=-0.1"),
    (ops.dropout, (X, None), {}, ValueError, "Received: rate=None"),
    (ops.dropout, (X, 0.5), {"residual": X[:1]}, ValueError, r"residual.shape=\(1, 5\)"),
    (ops.dropout, (X, 0.5), {"residual": X[0]}, ValueError, r"residual.shape=\(5,\)"),
    (ops.dropout, (X, 0.5), {"residual": X.astype(int)}, TypeError, "`residual` must hold"),
    (ops.dropout, (X, 0.5), {"seed": 0.5}, ValueError, "Received: seed=0.5"),
    (ops.dropout, (X, 0.5), {"seed": np.zeros(3, int)}, ValueError, "`seed` must be an integer"),
    *(
        (ops.softmax_cross_entropy, *case)
        for case in (
            ((X.astype(int), [0, 1]), {}, TypeError, "`logits` must hold floating"),
            ((np.float32(1), 0), {}, ValueError, "`logits` must have shape"),
            ((X[:, :0], [0, 1]), {}, ValueError, r"C >= 1. Received: logits.shape=\(2, 0\)"),
            ((X, [[0, 1]]), {}, ValueError, r"labels.shape=\(1, 2\)"),
            ((X, [0, 1, 2]), {}, ValueError, r"labels.shape=\(3,\)"),
            ((X, [0.0, 1.0]), {}, TypeError, "`labels` must hold integers"),
            ((X, [0, 5]), {}, ValueError, r"\[0, 5\).*Received: labels with 5"),
            ((X, [-1, 0]), {}, ValueError, "Received: labels with -1"),
            ((X, [-2, 0]), {"ignore_class": -1}, ValueError, "labels with -2"),
            ((X, [0, 1]), {"label_smoothing": 1.0}, ValueError, "label_smoothing=1.0"),
            ((X, [0, 1]), {"label_smoothing": -0.1}, ValueError, "label_smoothing=-0.1"),
            ((X, [0, 1]), {"ignore_class": 1.5}, ValueError, "Received: ignore_class=1.5"),
            ((X, [0, 1]), {"ignore_class": 2**31}, ValueError, "ignore_class=2147483648"),
        )
    ),
]


@pytest.mark.parametrize(("function", "arguments", "options", "error", "match"), BAD)
def test_bad_input_is_named(
    function: Any,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    error: type[Exception],
    match: str,
) -> None:
    with pytest.raises(error, match=match):
        function(*arguments, **options)
