"""`additive_attention` (Bahdanau) gives the reference's output, weights and gradients."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import heed
from heed import ops
from heed.ops import Mask
from tests import reference, strategies, tolerances
from tests.backend import on_tensorflow, tf, vjp
from tests.ops.harness import share_of_examples, small_blocks, to_float64
from tests.ops.test_attention_gradients import expected_second_derivatives, second_derivatives
from tests.strategies import BLOCKS, MaskCase, Shape, cast

NAMES = ("query", "key", "value", "score_vector", "bias")


def draw_inputs(
    B: int = 2,
    T: int = 5,
    S: int = 6,
    U: int = 4,
    V: int = 3,
    seed: int = 0,
    dtype: str = "float64",
) -> list[np.ndarray]:
    """Return query (B,T,U), key (B,S,U), value (B,S,V), score_vector (U,), bias (U,)."""
    rng = np.random.default_rng(seed)
    shapes = ((B, T, U), (B, S, U), (B, S, V), (U,), (U,))
    return [cast(rng.normal(size=shape), dtype) for shape in shapes]


def attend(query: Any, key: Any, value: Any, vector: Any, bias: Any = None, **options: Any) -> Any:
    return ops.additive_attention(query, key, value, vector, bias=bias, **options)


def check(
    inputs: list[np.ndarray],
    case: MaskCase | None = None,
    *,
    dtype: str = "float64",
    block: tuple[int, int] = (64, 64),
    dropout: float = 0.0,
) -> None:
    """Check that output, log-sum-exp, weights and all gradients agree with the reference."""
    options: dict[str, Any] = {"dropout": dropout, "seed": 3} if dropout else {}
    expected_options: dict[str, Any] = {"dropout": dropout}
    if case is not None:
        options["mask"], expected_options["mask"] = case.build(), case.dense[:, 0]
    rng = np.random.default_rng(9)
    tensors = [keras.ops.convert_to_tensor(x) for x in inputs]
    query, key, value, vector, bias = tensors
    d_out = cast(rng.normal(size=(*query.shape[:2], value.shape[-1])), dtype)
    d_lse = rng.normal(size=(*query.shape[:2],)).astype(
        "float64" if dtype == "float64" else "float32"
    )
    with small_blocks(block):
        (out, lse), pull = vjp(functools.partial(attend, return_lse=True, **options), *tensors)
        gradients = pull([d_out, d_lse])
        weights = ops.additive_attention_weights(query, key, vector, bias=bias, **options)
        if dropout:
            zero = [keras.ops.zeros_like(x) for x in (query, key, vector)]
            keep = ops.additive_attention_weights(*zero, dropout=dropout, seed=3)
            expected_options["keep"] = np.asarray(keep) > 0
    assert keras.backend.standardize_dtype(out.dtype) == dtype
    exact = [to_float64(x) for x in inputs]
    expected = reference.additive_attention(*exact[:4], bias=exact[4], **expected_options)
    tolerances.assert_values(out, expected.out, dtype, "out")
    tolerances.assert_statistics(lse, expected.lse, dtype, "lse")
    tolerances.assert_statistics(weights, expected.weights, dtype, "weights")
    backward = reference.additive_attention_backward(
        *exact[:4], to_float64(d_out), d_lse, bias=exact[4], **expected_options
    )
    for name, actual in zip(NAMES, gradients, strict=True):
        wanted = getattr(backward, name)
        assert actual.shape == wanted.shape
        tolerances.assert_gradients(actual, wanted, dtype, f"gradient of {name}")


@share_of_examples(2)
@given(data=st.data())
def test_anything_agrees_with_the_reference(implementation: str, data: st.DataObject) -> None:
    block = data.draw(st.sampled_from(BLOCKS))
    shape = data.draw(strategies.shapes(block))
    shape = Shape(shape.B, shape.T, shape.S, 1, 1, shape.H, shape.V)
    case = data.draw(strategies.masks(shape, least=0, among=strategies.HEADLESS))
    inputs = draw_inputs(shape.B, shape.T, shape.S, shape.H, shape.V)
    dropout = data.draw(st.sampled_from((0.0, 0.3)))
    check(inputs, None if case.text == "none" else case, block=block, dropout=dropout)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_each_dtype(implementation: str, dtype: str) -> None:
    check(draw_inputs(dtype=dtype), dtype=dtype, block=(2, 4))


@pytest.mark.parametrize(
    "shape", [(), (6,), (1, 6), (5, 6), (5, 1), (2, 1, 6), (2, 5, 6), (1, 5, 6), (2, 5, 1)], ids=str
)
def test_masks_of_any_broadcastable_shape(implementation: str, shape: tuple[int, ...]) -> None:
    """(B,T,S): additive attention has no heads."""
    array = np.asarray(np.random.default_rng(0).random(shape) < 0.6)
    dense = np.broadcast_to(array, (2, 5, 6))[:, None]
    check(draw_inputs(), MaskCase("dense", lambda: array, dense), block=(2, 4))


def test_without_bias(implementation: str) -> None:
    query, key, value, vector, _ = draw_inputs()
    out = ops.additive_attention(query, key, value, vector)
    expected = reference.additive_attention(query, key, value, vector)
    tolerances.assert_values(out, expected.out, "float64")
    np.testing.assert_array_equal(
        ops.additive_attention(query, key, value, vector, bias=np.zeros(4)), out
    )


@pytest.mark.parametrize(("T", "S"), [(97, 113), (1, 700), (300, 1), (257, 300)])
def test_lengths_off_the_block_size(implementation: str, T: int, S: int) -> None:
    """With the default blocks."""
    query, key, value, vector, bias = draw_inputs(1, T, S, 8, 4, dtype="float32")
    out = ops.additive_attention(query, key, value, vector, bias=bias, mask=ops.Mask.causal())
    mask = np.tril(np.ones((T, S), bool))
    expected = reference.additive_attention(query, key, value, vector, bias=bias, mask=mask)
    tolerances.assert_values(out, expected.out, "float32")


@pytest.mark.parametrize("empty", ["B", "T", "S"])
def test_empty_sizes(implementation: str, empty: str) -> None:
    tensors = [keras.ops.convert_to_tensor(x) for x in draw_inputs(**{empty: 0})]
    _, lse = attend(*tensors, return_lse=True)
    out, pull = vjp(attend, *tensors)
    assert not np.any(np.asarray(out))
    assert np.isneginf(lse).all()
    for x, gradient in zip(tensors, pull(), strict=True):
        assert gradient.shape == x.shape
        assert not np.any(np.asarray(gradient))


def test_rows_without_keys_and_poison_in_masked_slots(implementation: str) -> None:
    inputs = draw_inputs(dtype="float32")
    query, key, value, vector, bias = (x.copy() for x in inputs)
    key[:, 4:], value[:, 4:] = np.nan, np.inf
    mask = ops.Mask.lengths([4, 0])
    tensors = [keras.ops.convert_to_tensor(x) for x in (query, key, value, vector, bias)]
    with small_blocks((2, 3)):
        _, lse = attend(*tensors, mask=mask, return_lse=True)
        out, pull = vjp(functools.partial(attend, mask=mask), *tensors)
        clean = ops.additive_attention(*inputs[:4], bias=inputs[4], mask=mask)
    np.testing.assert_array_equal(out, clean)
    assert not np.asarray(out)[1].any()
    assert np.isneginf(np.asarray(lse)[1]).all()
    gradients = pull()
    for name, gradient in zip(NAMES, gradients, strict=True):
        assert np.isfinite(gradient).all(), name
    assert not np.asarray(gradients[0])[1].any()
    assert not np.asarray(gradients[1])[:, 4:].any()
    assert not np.asarray(gradients[2])[:, 4:].any()
    weights = ops.additive_attention_weights(key=key, query=query, score_vector=vector, mask=mask)
    assert not np.asarray(weights)[1].any()
    assert not np.asarray(weights)[:, :, 4:].any()


def test_second_derivatives(implementation: str) -> None:
    arguments = draw_inputs(B=2, T=3, S=4, U=2, V=2)
    rng = np.random.default_rng(1)
    directions = [rng.normal(size=x.shape) for x in arguments]
    d_out = rng.normal(size=(2, 3, 2))
    dense = np.tril(np.ones((2, 3, 4), bool))
    dense[1, 1] = False

    def function(*tensors: Any) -> Any:
        return ops.additive_attention(*tensors[:4], bias=tensors[4], mask=dense)

    def backward(*arrays: np.ndarray) -> list[np.ndarray]:
        *inputs, bias, d_out = arrays
        g = reference.additive_attention_backward(*inputs, d_out, bias=bias, mask=dense)
        return [getattr(g, name) for name in NAMES]

    with small_blocks((2, 3)):
        actual = second_derivatives(
            function,
            [keras.ops.convert_to_tensor(x) for x in arguments],
            keras.ops.convert_to_tensor(d_out),
            directions,
        )
    expected = expected_second_derivatives(backward, [*arguments, d_out], directions)
    for name, a, b in zip((*NAMES, "d_out"), actual, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-8, rtol=1e-6, err_msg=name)


def test_chosen_rows_of_the_weights(implementation: str) -> None:
    query, key, _, vector, bias = draw_inputs()
    mask = ops.Mask.causal()
    options: dict[str, Any] = {"bias": bias, "mask": mask, "dropout": 0.3, "seed": 1}
    whole = np.asarray(ops.additive_attention_weights(query, key, vector, **options))
    chosen = ops.additive_attention_weights(query, key, vector, rows=[4, 1], **options)
    np.testing.assert_allclose(chosen, whole[:, [4, 1]], atol=1e-13)


def naive(query: Any, key: Any, value: Any, vector: Any) -> Any:
    """Return textbook output and log-sum-exp, every step in the dtype of the inputs."""
    scores = keras.ops.matmul(keras.ops.tanh(query[:, :, None] + key[:, None]), vector)
    output = keras.ops.matmul(keras.ops.softmax(scores), value)
    return output, keras.ops.logsumexp(scores, -1)


def flat(query: Any, key: Any, value: Any, vector: Any) -> Any:
    return ops.additive_attention(query, key, value, vector, return_lse=True)


# The native kernels compute tanh in three ways, by the magnitude of the input: each in float32, and each dtype once.
BY_DEFAULT = (
    *(("float32", size) for size in (1e-3, 0.3, 4.0)),
    *(("float64", 1.0), ("float16", 4.0), ("bfloat16", 0.1)),
)


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        pytest.param(
            dtype,
            size,
            marks=[] if (dtype, size) in BY_DEFAULT else pytest.mark.slow,
        )
        for dtype in ("float32", "float64", "float16", "bfloat16")
        for size in (1e-3, 0.03, 0.1, 0.3, 1.0, 4.0, 12.0, 1000.0)
    ],
)
def test_error_is_at_most_twice_that_of_a_naive_implementation(
    implementation: str, dtype: str, size: float
) -> None:
    """For all results, including small inputs, large inputs, and queries and keys that cancel."""
    rng = np.random.default_rng(0)
    B, T, S, U, V = 8, 70, 110, 40, 24
    query, key = rng.normal(size=(B, T, U)) * size, rng.normal(size=(B, S, U)) * size
    query[4:], key[4:] = query[4:] + 3 * size, key[4:] - 3 * size
    value, vector, d_out = (rng.normal(size=n) for n in ((B, S, V), (U,), (B, T, V)))
    inputs = [keras.ops.convert_to_tensor(cast(x, dtype)) for x in (query, key, value, vector)]
    d_out = keras.ops.convert_to_tensor(cast(d_out, dtype))
    results = []
    for function in (flat, naive):
        (out, lse), pull = vjp(function, *inputs)
        results.append((out, lse, *pull([d_out, keras.ops.zeros_like(lse)])))
    exact = [to_float64(x) for x in (*inputs, d_out)]
    if dtype == "float64":  # a reference in float64 errs as much as what it judges
        exact = [x.astype(np.longdouble) for x in exact]
    forward = reference.additive_attention(*exact[:4])
    backward = reference.additive_attention_backward(*exact)
    expected = [forward.out, forward.lse, *(getattr(backward, name) for name in NAMES[:4])]
    for name, actual, plain, right in zip(
        ("out", "lse", *NAMES[:4]), *results, expected, strict=True
    ):
        tolerances.assert_no_worse_than_naive(actual, plain, right, dtype, name)


def everything(tensors: list[Any], **options: Any) -> list[np.ndarray]:
    """Return output, log-sum-exp and all gradients, including those of the log-sum-exp."""
    results, pull = vjp(functools.partial(attend, return_lse=True, **options), *tensors)
    return [np.asarray(x) for x in (*results, *pull([keras.ops.cos(x) for x in results]))]


def test_what_is_not_finite_reaches_the_same_rows_in_both(implementation: str) -> None:
    """NaN and infinity anywhere, masked and visible, forward and backward, as in the portable form."""
    case = Mask.causal() & Mask.lengths([6, 4]) & Mask.dense(np.arange(6) != 2)
    for place, value in ((0, np.nan), (0, np.inf), (1, np.nan), (1, -np.inf), (2, np.inf)):
        arrays = draw_inputs(T=6, S=6, dtype="float32")
        for position in ((0, 1), (0, 2), (1, 3), (1, 5)):
            arrays[place][position] = value
        tensors = [keras.ops.convert_to_tensor(x) for x in arrays]
        actual = everything(tensors, mask=case)
        with heed.set_implementation("portable"):
            expected = everything(tensors, mask=case)
        for name, a, b in zip(("out", "lse", *NAMES), actual, expected, strict=True):
            np.testing.assert_array_equal(np.isfinite(a), np.isfinite(b), err_msg=name)
            finite = np.isfinite(b)
            np.testing.assert_allclose(a[finite], b[finite], atol=2e-6, err_msg=name)


@on_tensorflow
@pytest.mark.parametrize("bias", [pytest.param(False, marks=pytest.mark.slow), True])
def test_one_trace_serves_all_sizes(implementation: str, bias: bool) -> None:
    """Batch and lengths unknown while tracing, forward and backward, including 0."""
    traces = []

    @tf.function(
        input_signature=[
            *(tf.TensorSpec([None, None, n], tf.float32) for n in (4, 4, 3)),
            *(tf.TensorSpec([4], tf.float32) for _ in range(2)),
        ]
    )
    def run(*tensors: tf.Tensor) -> Any:
        traces.append(tensors)
        options = {"mask": Mask.causal(align="bottom_right"), "dropout": 0.2, "seed": 1}
        out, pull = vjp(functools.partial(attend, **options), *tensors[: 5 if bias else 4])
        assert out.shape.as_list() == [None, None, 3]
        return out, pull()

    for B, T, S in ((2, 5, 6), (1, 1, 200), (3, 9, 4), (0, 2, 3), (2, 0, 3), (2, 3, 0)):
        inputs = draw_inputs(B, T, S, dtype="float32")
        out, gradients = run(*inputs)
        visible = np.arange(S) <= np.arange(T)[:, None] + S - T
        zero = [np.zeros_like(x) for x in (*inputs[:2], inputs[3])]
        keep = np.asarray(ops.additive_attention_weights(*zero, dropout=0.2, seed=1)) > 0
        options: dict[str, Any] = {"mask": visible, "keep": keep, "dropout": 0.2}
        if bias:
            options["bias"] = inputs[4]
        expected = reference.additive_attention(*inputs[:4], **options)
        tolerances.assert_values(out, expected.out, "float32")
        backward = reference.additive_attention_backward(*inputs[:4], np.ones(out.shape), **options)
        for name, gradient in zip(NAMES, gradients, strict=False):
            tolerances.assert_gradients(gradient, getattr(backward, name), "float32", name)
    assert len(traces) == 1


@on_tensorflow
def test_sizes_that_do_not_fit_are_named_at_run_time(implementation: str) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, None, 4], tf.float32)] * 3)
    def run(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        return ops.additive_attention(query, key, value, tf.ones(4))

    for key, value in (((2, 5, 4), (2, 6, 4)), ((3, 5, 4), (3, 5, 4))):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"`(key|value)`"):
            run(tf.ones((2, 3, 4)), tf.ones(key), tf.ones(value))


def test_which_implementation_runs_and_why(implementation: str) -> None:
    query, key, value, vector, bias = draw_inputs()
    told = heed.explain_dispatch(query, key, value, score_vector=vector, bias=bias)
    assert implementation in str(told)
    nothing = [np.zeros((1, 2, 0)), np.zeros((1, 2, 0)), np.zeros((1, 2, 3)), np.zeros(0)]
    told = heed.explain_dispatch(*nothing[:3], score_vector=nothing[3])
    assert told.implementation == "portable"
    with pytest.raises(ValueError, match="score_vector"):
        heed.explain_dispatch(query, key, value, score_vector=vector[:2])


@on_tensorflow
def test_the_native_kernels_are_what_runs() -> None:
    """The op is in the graph, forward and backward: no other test would notice a silent fallback."""
    if heed.info()["implementation"] != "native":
        pytest.skip("no native kernels")

    def run(*tensors: tf.Tensor) -> Any:
        return vjp(attend, *tensors)[1]()

    tensors = [tf.constant(x) for x in draw_inputs(dtype="float32")[:4]]
    traced = tf.function(run).get_concrete_function(*tensors)
    kinds = {op.type for op in traced.graph.get_operations()}
    assert {"HeedAttention", "HeedAttentionGradient"} <= kinds
    with heed.set_implementation("portable"):
        plain = tf.function(run).get_concrete_function(*tensors)
    assert not any(op.type.startswith("Heed") for op in plain.graph.get_operations())
