"""`dot_product_attention` gives the reference's output, log-sum-exp and gradients."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed import ops
from tests import reference, strategies, tolerances
from tests.backend import vjp
from tests.ops.harness import (
    check_against_reference,
    naive_attention,
    share_of_examples,
    small_blocks,
    to_float64,
)
from tests.slow import slow
from tests.strategies import BLOCKS, Shape, cast


@given(data=st.data())
def test_anything_agrees_with_the_reference(implementation: str, data: st.DataObject) -> None:
    block = data.draw(st.sampled_from(BLOCKS))
    shape, case, options = data.draw(strategies.problems(block=block))
    with_lse = data.draw(st.booleans())
    check_against_reference(shape, case, options, block=block, lse_cotangent=with_lse)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@share_of_examples(3)
@given(data=st.data())
def test_each_dtype_agrees_with_the_reference(
    implementation: str, dtype: str, data: st.DataObject
) -> None:
    shape, case, options = data.draw(strategies.problems(block=(4, 4)))
    check_against_reference(shape, case, options, dtype=dtype, block=(4, 4))


LENGTHS = (
    (97, 113),
    (127, 129),
    (200, 203),
    (211, 217),
    (239, 1),
    (257, 339),
    (267, 514),
    (513, 255),
    (1, 2000),
    (3, 1025),
    (1023, 1024),
)


@pytest.mark.parametrize(
    ("T", "S", "causal"),
    [
        pytest.param(T, S, causal, marks=[] if causal == bool(i % 2) else pytest.mark.slow)
        for i, (T, S) in enumerate(LENGTHS)
        for causal in (False, True)
    ],
)
def test_lengths_off_the_block_size(implementation: str, T: int, S: int, causal: bool) -> None:
    """With the default blocks."""
    shape = Shape(B=1, T=T, S=S, N=1, K=1, H=8, V=8)
    query, key, value = shape.inputs(0, "float32")
    actual = ops.dot_product_attention(query, key, value, is_causal=causal)
    mask = np.tril(np.ones((T, S), bool)) if causal else None
    expected = reference.dot_product_attention(query, key, value, mask=mask)
    tolerances.assert_values(actual, expected.out, "float32")


@pytest.mark.parametrize(
    ("T", "S", "causal"),
    [
        (257, 514, True),
        (300, 129, False),
        *slow([(257, 514, False), (300, 129, True), (640, 640, True), (640, 640, False)]),
    ],
)
def test_gradients_with_the_blocks_that_users_get(
    implementation: str, T: int, S: int, causal: bool
) -> None:
    shape = Shape(B=1, T=T, S=S, N=2, K=1, H=8, V=4)
    query, key, value = (keras.ops.convert_to_tensor(x) for x in shape.inputs(0, "float64"))
    d_out = np.random.default_rng(1).normal(size=(1, T, 2, 4))
    attend = functools.partial(ops.dot_product_attention, is_causal=causal)
    actual = vjp(attend, query, key, value)[1](d_out)
    mask = np.tril(np.ones((T, S), bool)) if causal else None
    expected = reference.dot_product_attention_backward(query, key, value, d_out, mask=mask)
    for name, gradient in zip(("query", "key", "value"), actual, strict=True):
        tolerances.assert_gradients(gradient, getattr(expected, name), "float64", name)


SMALL = {"B": 1, "T": 5, "S": 7}
# Widths of heads and of values, numbers of heads, and batch sizes that random shapes do not have.
SIZES = [
    *({**SMALL, "H": H, "V": H} for H in (1, 3, 8, 15, 34, 72, 111, 264)),
    *({"H": H, "V": V} for H, V in ((3, 130), (68, 5), (5, 0))),
    *({"N": N, "K": N} for N in (5, 12, 16)),
    {"B": 400, "T": 3, "S": 3, "N": 1, "K": 1},
]


@pytest.mark.parametrize(
    "sizes",
    [*SIZES, *slow({**SMALL, "H": H, "V": H} for H in (2, 21, 31, 40, 59, 96, 160, 224, 512))],
    ids=str,
)
def test_sizes(implementation: str, sizes: dict[str, int]) -> None:
    check_against_reference(Shape(**sizes), None, {}, dtype="float32", block=(4, 4))


@pytest.mark.parametrize("empty", ["B", "T", "S"])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"dropout": 0.5, "seed": 3}])
def test_empty_sizes(implementation: str, empty: str, options: dict[str, Any]) -> None:
    """Without queries the output is empty; without keys every row is 0, with gradients 0."""
    shape = Shape(**{empty: 0})
    inputs = [keras.ops.convert_to_tensor(x) for x in shape.inputs(0, "float32")]
    _, lse = ops.dot_product_attention(*inputs, return_lse=True, **options)
    out, pull = vjp(functools.partial(ops.dot_product_attention, **options), *inputs)
    assert out.shape == (shape.B, shape.T, shape.N, shape.V)
    assert lse.shape == (shape.B, shape.N, shape.T)
    assert not np.any(np.asarray(out))
    assert np.all(np.isneginf(lse))
    for x, gradient in zip(inputs, pull(), strict=True):
        assert gradient is not None
        assert gradient.shape == x.shape
        assert not np.any(np.asarray(gradient))
    weights = ops.attention_weights(*inputs[:2], **options)
    assert weights.shape == (shape.B, shape.N, shape.T, shape.S)


@given(data=st.data())
def test_the_other_layout_is_a_transposition(implementation: str, data: st.DataObject) -> None:
    shape, case, options = data.draw(strategies.problems(block=(3, 5), dropout=True))
    options.setdefault("dropout", 0.0)
    query, key, value = (keras.ops.convert_to_tensor(x) for x in shape.inputs(0, "float32"))
    if "bias" in options:
        options["bias"] = options["bias"].astype(np.float32)
    options |= {"mask": case.build(), "seed": 5, "return_lse": True}
    swapped = [keras.ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value)]
    with small_blocks((3, 5)):
        out, lse = ops.dot_product_attention(query, key, value, **options)
        other, other_lse = ops.dot_product_attention(*swapped, layout="BNTH", **options)
    np.testing.assert_allclose(keras.ops.transpose(other, (0, 2, 1, 3)), out, atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(other_lse, lse, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 1, 3, 2)])
def test_scaled_dot_product_attention_of_any_rank(
    implementation: str, leading: tuple[int, ...], causal: bool
) -> None:
    rng = np.random.default_rng(0)
    T, S, H, V = 4, 6, 3, 5
    query = rng.normal(size=(*leading, T, H))
    key, value = rng.normal(size=(*leading, S, H)), rng.normal(size=(*leading, S, V))
    mask = rng.random((*leading, T, S)) < 0.7
    mask[..., 1, :] = False
    with small_blocks((3, 4)):
        actual, weights = ops.scaled_dot_product_attention(
            query, key, value, mask, is_causal=causal, return_weights=True
        )
        alone = ops.scaled_dot_product_attention(query, key, value, mask, is_causal=causal)
    assert actual.shape == (*leading, T, V)
    assert weights.shape == (*leading, T, S)
    np.testing.assert_array_equal(alone, actual)
    visible = mask & np.tril(np.ones((T, S), bool)) if causal else mask
    flat = [x.reshape((-1, *x.shape[-2:], 1)) for x in (query, key, value)]
    expected = reference.dot_product_attention(
        *(np.moveaxis(x, -1, -2) for x in flat), mask=visible.reshape((-1, 1, T, S))
    )
    tolerances.assert_values(actual, expected.out.reshape(actual.shape), "float64")
    tolerances.assert_statistics(weights, expected.weights.reshape(weights.shape), "float64")


def test_scaled_dot_product_attention_broadcasts_its_mask(implementation: str) -> None:
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(2, 3, 4, 5)) for _ in range(3))
    padding = np.array([[True, True, False, False], [True, True, True, False]])[:, None, None]
    actual = ops.scaled_dot_product_attention(query, key, value, padding, scale=0.3)
    moved = [np.swapaxes(x, 1, 2) for x in (query, key, value)]
    expected = reference.dot_product_attention(*moved, mask=padding, scale=0.3)
    tolerances.assert_values(actual, np.swapaxes(expected.out, 1, 2), "float64")


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("T", "S"),
    [(64, 129), *slow([(17, 17), (128, 300)])],
)
def test_error_is_at_most_twice_that_of_a_naive_implementation(
    implementation: str, dtype: str, T: int, S: int
) -> None:
    shape = Shape(B=2, T=T, S=S, N=4, K=2, H=32, V=32)
    inputs = [keras.ops.convert_to_tensor(x) for x in shape.inputs(0, dtype)]
    mask = np.random.default_rng(1).random((2, 1, T, S)) < 0.9
    d_out = cast(np.random.default_rng(2).normal(size=(2, T, 4, 32)), dtype)
    results = []
    for function in (ops.dot_product_attention, naive_attention):
        out, pull = vjp(functools.partial(function, mask=mask), *inputs)
        results.append((out, *pull(d_out)))
    arguments = [to_float64(x) for x in inputs]
    backward = reference.dot_product_attention_backward(*arguments, to_float64(d_out), mask=mask)
    expected = (
        reference.dot_product_attention(*arguments, mask=mask).out,
        backward.query,
        backward.key,
        backward.value,
    )
    for what, actual, naive, exact in zip(
        ("out", "query", "key", "value"), *results, expected, strict=True
    ):
        tolerances.assert_no_worse_than_naive(actual, naive, exact, dtype, what)
