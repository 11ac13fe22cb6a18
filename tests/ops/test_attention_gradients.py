"""First and second derivatives with respect to query, key, value and bias."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed import ops
from tests import reference, strategies, tolerances
from tests.backend import on_tensorflow, tf, vjp
from tests.ops.harness import (
    check_against_reference,
    keep_mask,
    reference_options,
    share_of_examples,
    small_blocks,
)
from tests.slow import slow
from tests.strategies import MaskCase, Shape

SHAPE = Shape(B=2, T=5, S=6, N=4, K=2, H=3, V=2)


@pytest.mark.parametrize(
    "axes",
    [  # any two axes in all four ways; the rest is slow
        pytest.param(axes, marks=[] if sum(axes) in (0, 3) else pytest.mark.slow)
        for axes in itertools.product((False, True), repeat=4)
    ],
)
def test_the_gradient_of_a_bias_that_broadcasts(
    implementation: str, axes: tuple[bool, ...]
) -> None:
    """Long enough for several tiles of queries and blocks of keys, whose parts must be summed."""
    shape = Shape(B=2, T=70, S=100, N=4, K=2, H=3, V=2)
    full = (shape.B, shape.N, shape.T, shape.S)
    size = [n if whole else 1 for n, whole in zip(full, axes, strict=True)]
    bias = np.random.default_rng(5).normal(size=size)
    causal = np.broadcast_to(np.tril(np.ones((70, 100), bool)), full)
    mask = MaskCase("causal", lambda: ops.Mask.causal(), causal)
    check_against_reference(shape, mask, {"bias": bias, "soft_cap": 2.0}, block=(32, 32))


def second_derivatives(
    function: Callable[..., Any],
    arguments: list[Any],
    d_out: Any,
    directions: list[np.ndarray],
) -> list[Any]:
    """Return gradients of sum(first derivatives * directions) by the arguments and by d_out."""

    def gradients(*operands: Any) -> list[Any]:
        return vjp(function, *operands[:-1])[1](operands[-1])

    return vjp(gradients, *arguments, d_out)[1](directions)


def expected_second_derivatives(
    backward: Callable[..., list[np.ndarray]],
    arguments: list[np.ndarray],
    directions: list[np.ndarray],
    step: float = 1e-5,
) -> list[np.ndarray]:
    """Return the same from the reference's analytic first derivatives, by central differences."""

    def total(*changed: np.ndarray) -> float:
        return sum(
            float((g * u).sum()) for g, u in zip(backward(*changed), directions, strict=True)
        )

    result = []
    for position, point in enumerate(arguments):
        gradient = np.zeros_like(point)
        for index in np.ndindex(point.shape):
            values = []
            for sign in (1.0, -1.0):
                moved = [x.copy() for x in arguments]
                moved[position][index] += sign * step
                values.append(total(*moved))
            gradient[index] = (values[0] - values[1]) / (2.0 * step)
        result.append(gradient)
    return result


@pytest.mark.parametrize(
    ("mask", "options"),
    [
        ("none", "bias"),
        ("joined", "everything"),
        pytest.param("none", "everything", marks=pytest.mark.slow),
        pytest.param("joined", "bias", marks=pytest.mark.slow),
    ],
)
def test_second_derivatives(implementation: str, mask: str, options: str) -> None:
    shape = Shape(B=2, T=3, S=4, N=2, K=1, H=2, V=2)
    chosen: dict[str, Any] = {}
    if options == "everything":
        slopes = np.array([0.5, 0.25], np.float32)
        chosen = {"soft_cap": 2.0, "scale": 0.8, "alibi_slopes": slopes, "dropout": 0.2, "seed": 7}
    rng = np.random.default_rng(5)
    bias = rng.normal(size=(1, 2, 1, 4) if options == "bias" else (2, 2, 3, 4))
    dense = np.ones((2, 2, 3, 4), bool)
    if mask == "joined":
        chosen["mask"] = ops.Mask.causal() & ops.Mask.lengths([3, 0])
        dense = np.tril(dense) & (np.arange(4) < np.array([3, 0])[:, None, None, None])
    arguments = [*shape.inputs(0), bias]
    d_out = rng.normal(size=(2, 3, 2, 2))
    directions = [rng.normal(size=x.shape) for x in arguments]

    def function(*tensors: Any) -> Any:
        *qkv, bias = tensors
        return ops.dot_product_attention(*qkv, bias=bias, **chosen)

    plain = {name: x for name, x in chosen.items() if name != "mask"}
    expected_options = {**reference_options(plain, None, "float64"), "mask": dense}
    if "dropout" in chosen:
        expected_options["keep"] = keep_mask(*arguments[:2], dropout=chosen["dropout"], seed=7)

    def backward(*arrays: np.ndarray) -> list[np.ndarray]:
        query, key, value, bias, d_out = arrays
        g = reference.dot_product_attention_backward(
            query, key, value, d_out, bias=bias, **expected_options
        )
        assert g.bias is not None
        return [g.query, g.key, g.value, g.bias]

    with small_blocks((2, 3)):
        actual = second_derivatives(
            function,
            [keras.ops.convert_to_tensor(x) for x in arguments],
            keras.ops.convert_to_tensor(d_out),
            directions,
        )
    expected = expected_second_derivatives(backward, [*arguments, d_out], directions)
    names = ("query", "key", "value", "bias", "d_out")
    for name, a, b in zip(names, actual, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-8, rtol=1e-6, err_msg=name)


def test_second_derivatives_of_the_log_sum_exp(implementation: str) -> None:
    shape = Shape(B=1, T=3, S=5, N=2, K=1, H=2, V=2)
    query, key, value = (keras.ops.convert_to_tensor(x) for x in shape.inputs(0))

    def dense(query: Any, key: Any) -> Any:
        logits = keras.ops.einsum(
            "BTNH,BSNH->BNTS", query, keras.ops.repeat(key, 2, axis=2)
        ) / np.sqrt(2.0)
        return keras.ops.logsumexp(logits, axis=-1)

    def ours(query: Any, key: Any) -> Any:
        return ops.dot_product_attention(query, key, value, return_lse=True)[1]

    rng = np.random.default_rng(1)
    d_lse = keras.ops.convert_to_tensor(rng.normal(size=(1, 2, 3)))
    directions = [rng.normal(size=x.shape) for x in (query, key)]
    with small_blocks((2, 3)):
        actual = second_derivatives(ours, [query, key], d_lse, directions)
    expected = second_derivatives(dense, [query, key], d_lse, directions)
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("implementation", ["native", *slow(["portable"])], indirect=True)
@share_of_examples(7)
@given(data=st.data())
def test_second_derivatives_are_symmetric(implementation: str, data: st.DataObject) -> None:
    """u.(H v) = v.(H u), whatever the mask and the blocks."""
    block = data.draw(st.sampled_from(strategies.BLOCKS[:3]))
    shape, case, options = data.draw(strategies.problems(block=block))
    chosen: dict[str, Any] = dict(options)
    bias = chosen.pop("bias", np.zeros((1, 1)))
    if case.text != "none":
        chosen["mask"] = case.build()
    arguments = [keras.ops.convert_to_tensor(x) for x in (*shape.inputs(0), bias)]
    rng = np.random.default_rng(1)
    d_out = keras.ops.convert_to_tensor(rng.normal(size=(shape.B, shape.T, shape.N, shape.V)))
    u, v = ([rng.normal(size=x.shape) for x in arguments] for _ in range(2))

    def function(*tensors: Any) -> Any:
        return ops.dot_product_attention(*tensors[:3], bias=tensors[3], **chosen)

    with small_blocks(block):
        forward = second_derivatives(function, arguments, d_out, u)[:4]
        backward = second_derivatives(function, arguments, d_out, v)[:4]
    left = sum(float(np.sum(np.asarray(a) * b)) for a, b in zip(forward, v, strict=True))
    right = sum(float(np.sum(np.asarray(a) * b)) for a, b in zip(backward, u, strict=True))
    assert left == pytest.approx(right, rel=1e-8, abs=1e-9)


@pytest.mark.parametrize("sides", [(0, 3, 5), (2, 0, 5), (2, 3, 0)])
@pytest.mark.parametrize("whole", [(1, 1, 1, 1), (0, 1, 1, 0), (1, 0, 1, 1), (0, 1, 0, 1)])
def test_the_gradient_of_a_bias_of_nothing_has_its_shape(
    implementation: str, sides: tuple[int, int, int], whole: tuple[int, ...]
) -> None:
    B, T, S = sides
    shape = [n if full else 1 for n, full in zip((B, 4, T, S), whole, strict=True)]
    query, key, bias = (
        keras.ops.zeros((B, T, 4, 8)),
        keras.ops.zeros((B, S, 4, 8)),
        keras.ops.ones(shape),
    )

    _, pull = vjp(lambda bias: ops.dot_product_attention(query, key, key, bias=bias), bias)
    np.testing.assert_array_equal(pull()[0], np.zeros(shape))


def test_only_the_gradients_asked_for(implementation: str) -> None:
    inputs = [keras.ops.convert_to_tensor(x) for x in SHAPE.inputs(0)]
    for i, wanted in enumerate(inputs):
        _, pull = vjp(
            lambda x, i=i: ops.dot_product_attention(*inputs[:i], x, *inputs[i + 1 :]), wanted
        )
        assert pull()[0].shape == wanted.shape


def test_one_tensor_as_query_key_and_value(implementation: str) -> None:
    """Self-attention of a tensor with itself sums the three gradients."""
    x = keras.ops.convert_to_tensor(Shape(T=6, S=6).inputs(0)[0])
    (gradient,) = vjp(lambda x: ops.dot_product_attention(x, x, x), x)[1]()
    d_out = np.ones(x.shape)
    expected = reference.dot_product_attention_backward(x, x, x, d_out)
    total = expected.query + expected.key + expected.value
    tolerances.assert_gradients(gradient, total, "float64")


@on_tensorflow
def test_gradients_through_variables_and_recomputation(implementation: str) -> None:
    """`tf.recompute_grad` (gradient checkpointing) gives the same gradients."""
    key, value = (tf.constant(x) for x in SHAPE.inputs(0)[1:])
    weight = tf.Variable(SHAPE.inputs(0)[0])

    def function(query: tf.Tensor) -> tf.Tensor:
        return ops.dot_product_attention(query, key, value, dropout=0.2, seed=4)

    gradients = []
    for wrapped in (function, tf.recompute_grad(function)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(wrapped(2.0 * weight) ** 2)
        gradients.append(tape.gradient(loss, weight))
    np.testing.assert_allclose(gradients[0], gradients[1], atol=1e-13)
