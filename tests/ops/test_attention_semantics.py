"""The meaning of attention: empty rows, masked keys, scale, soft-cap, bias, grouped heads, lse."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed import ops
from tests import reference, strategies, tolerances
from tests.ops.harness import (
    Results,
    check_against_reference,
    share_of_examples,
    small_blocks,
)
from tests.strategies import MaskCase, Shape

SHAPE = Shape(B=2, T=9, S=11, N=4, K=2, H=4, V=3)


def dense_case(dense: np.ndarray, shape: Shape = SHAPE) -> MaskCase:
    full = np.broadcast_to(dense, (shape.B, shape.N, shape.T, shape.S))
    return MaskCase("dense", lambda: ops.Mask.dense(dense), full)


# --- rows that may attend to nothing ------------------------------------------------------------


def empty_row_masks(shape: Shape = SHAPE) -> dict[str, tuple[Any, np.ndarray]]:
    """Return a mask, and the rows (B,N,T) that it leaves without a key."""
    every_fourth = np.ones((1, 1, shape.T, shape.S), bool)
    every_fourth[:, :, ::4] = False
    rows = np.zeros((shape.B, shape.N, shape.T), bool)
    fourth, item, tail, leading = rows.copy(), rows.copy(), rows.copy(), rows.copy()
    fourth[:, :, ::4], item[1], tail[0, :, 4:], leading[:, :, :3] = True, True, True, True
    return {
        "dense": (ops.Mask.dense(every_fourth), fourth),
        "array": (every_fourth, fourth),
        "lengths": (ops.Mask.lengths([5, 0]), item),
        "query_lengths": (ops.Mask.lengths([5, 6], [4, shape.T]), tail),
        "causal": (ops.Mask.causal(align=-3), leading),
        "segments": (ops.Mask.segments([[9, 9, 9] + [1] * 6] * 2, [[1] * 11] * 2), leading),
        "everything": (np.zeros((), bool), ~rows),
    }


WITH_EMPTY_ROWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout": {"dropout": 0.3, "seed": 1},
    "soft_cap": {"soft_cap": 2.0},
    "alibi": {"alibi_slopes": [0.5, 0.25, 0.1, 0.0]},
    "bias": {"bias": np.ones((1, 1, 9, 11), np.float32)},
    "is_causal": {"is_causal": True},
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(
            kind,
            name,
            marks=[]
            if name == "plain" or (kind == "lengths" and name in ("dropout", "alibi", "bias"))
            else pytest.mark.slow,
        )
        for kind in empty_row_masks()
        for name in WITH_EMPTY_ROWS
    ],
)
def test_a_row_without_keys_gives_zero_everywhere(
    implementation: str, kind: str, name: str
) -> None:
    mask, empty = empty_row_masks()[kind]
    options = WITH_EMPTY_ROWS[name]
    inputs = SHAPE.inputs(0, "float32")
    d_out = np.ones((SHAPE.B, SHAPE.T, SHAPE.N, SHAPE.V))
    with small_blocks((4, 4)):
        result = Results(inputs, {"mask": mask, **options}, d_out, np.ones(empty.shape))
        weights = ops.attention_weights(*inputs[:2], mask=mask, **options)
    by_query = np.moveaxis(empty, 1, 2)
    assert not np.asarray(result.out)[by_query].any()
    assert np.isneginf(np.asarray(result.lse)[empty]).all()
    assert not np.isneginf(np.asarray(result.lse)[~empty]).any()
    assert not np.asarray(weights)[empty].any()
    assert not np.asarray(result.gradients["query"])[by_query].any()
    for name, gradient in result.gradients.items():
        assert np.isfinite(gradient).all(), name


def test_minus_infinity_in_the_bias_masks(implementation: str) -> None:
    """Including bands that cover whole blocks, and rows of only -inf."""
    bias = np.random.default_rng(0).normal(size=(2, 1, 9, 11))
    bias[:, :, :, 4:8] = -np.inf
    bias[1, :, 3] = -np.inf
    for options in ({}, {"soft_cap": 1.5}):
        check_against_reference(SHAPE, None, {"bias": bias, **options}, block=(4, 4))


# --- masked keys and values ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "poison", "dtype"),
    [  # each kind with NaN, and lengths in each dtype
        pytest.param(
            kind,
            poison,
            dtype,
            marks=[]
            if np.isnan(poison) and (dtype == "float32" or kind == "lengths")
            else pytest.mark.slow,
        )
        for kind in ("dense", "lengths", "causal", "window", "segments")
        for poison in (np.nan, np.inf, -np.inf)
        for dtype in ("float32", "float16")
    ],
)
def test_masked_keys_and_values_never_leak(
    implementation: str, kind: str, poison: float, dtype: str
) -> None:
    mask = {
        "dense": ops.Mask.dense(np.arange(11) < 6),
        "lengths": ops.Mask.lengths([6, 6]),
        "causal": ops.Mask.causal(align=-3),
        "window": ops.Mask.window(None, 0, align=-3),
        "segments": ops.Mask.segments([[1] * 9] * 2, [[1] * 6 + [2] * 5] * 2),
    }[kind]
    clean = SHAPE.inputs(0, dtype)
    query, key, value = (x.copy() for x in clean)
    key[:, 6:], value[:, 6:] = poison, poison
    d_out = np.ones((SHAPE.B, SHAPE.T, SHAPE.N, SHAPE.V))
    d_lse = np.ones((SHAPE.B, SHAPE.N, SHAPE.T))
    with small_blocks((4, 4)):
        expected = Results(clean, {"mask": mask}, d_out, d_lse)
        actual = Results((query, key, value), {"mask": mask}, d_out, d_lse)
        weights = ops.attention_weights(query, key, mask=mask)
    np.testing.assert_array_equal(actual.out, expected.out)
    np.testing.assert_array_equal(actual.lse, expected.lse)
    for name, gradient in actual.gradients.items():
        np.testing.assert_array_equal(gradient, expected.gradients[name], err_msg=name)
    assert not np.asarray(actual.gradients["key"])[:, 6:].any()
    assert not np.asarray(actual.gradients["value"])[:, 6:].any()
    assert np.isfinite(weights).all()


def test_nan_in_a_padded_query_stays_in_its_row(implementation: str) -> None:
    query, key, value = SHAPE.inputs(0, "float32")
    query = query.copy()
    query[0, 4:] = np.nan
    mask = ops.Mask.lengths([11, 11], [4, 9])
    d_out = np.ones((SHAPE.B, SHAPE.T, SHAPE.N, SHAPE.V))
    with small_blocks((4, 4)):
        result = Results((query, key, value), {"mask": mask}, d_out)
    assert np.isfinite(result.out).all()
    assert not np.asarray(result.out)[0, 4:].any()
    for name, gradient in result.gradients.items():
        assert np.isfinite(gradient).all(), name


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("T", [1, 9])
def test_only_under_a_mask_nan_in_one_feature_reaches_all(
    implementation: str, masked: bool, T: int
) -> None:
    """Without a mask it spreads as arithmetic carries it; T = 1 is a decoding step."""
    query, key, value = (x.copy() for x in SHAPE.inputs(0, "float32"))
    value[0, 2, :, 1] = np.nan
    mask = ops.Mask.lengths([11, 11]) if masked else None
    out = np.asarray(ops.dot_product_attention(query[:, :T], key, value, mask=mask))
    assert np.isnan(out[0, ..., 1]).all()
    assert np.isnan(out[0, ..., [0, 2]]).all() == masked
    assert np.isfinite(out[0, ..., [0, 2]]).all() != masked
    assert np.isfinite(out[1]).all()


# --- scale, soft-cap, bias, ALiBi ---------------------------------------------------------------


@pytest.mark.parametrize("shape", strategies.dense_shapes(SHAPE), ids=str)
def test_bias_of_any_broadcastable_shape(implementation: str, shape: tuple[int, ...]) -> None:
    """Its gradient has its own shape."""
    bias = np.random.default_rng(1).normal(size=shape)
    check_against_reference(SHAPE, None, {"bias": bias}, block=(4, 4))


def test_bias_mask_and_causal_together(implementation: str) -> None:
    dense = np.random.default_rng(0).random((2, 1, 9, 11)) < 0.6
    bias = np.random.default_rng(1).normal(size=(2, 4, 9, 11))
    inputs = SHAPE.inputs(0)
    expected = reference.dot_product_attention(
        *inputs, mask=dense & np.tril(np.ones((9, 11), bool)), bias=bias
    )
    with small_blocks((4, 4)):
        out = ops.dot_product_attention(*inputs, mask=dense, bias=bias, is_causal=True)
    tolerances.assert_values(out, expected.out, "float64")


def test_bias_of_another_dtype(implementation: str) -> None:
    """A float32 bias is not narrowed to the inputs' float16, nor does it widen the output."""
    query, key, value = SHAPE.inputs(0, "float16")
    bias = np.random.default_rng(1).normal(size=(1, 4, 9, 11)).astype(np.float32)
    out, lse = ops.dot_product_attention(query, key, value, bias=bias, return_lse=True)
    expected = reference.dot_product_attention(query, key, value, bias=bias)
    tolerances.assert_statistics(lse, expected.lse, "float32")
    assert keras.backend.standardize_dtype(out.dtype) == "float16"
    tolerances.assert_values(out, expected.out, "float16")


@share_of_examples(2)
@given(data=st.data())
def test_alibi_counts_from_the_mask_align(implementation: str, data: st.DataObject) -> None:
    shape = data.draw(strategies.shapes((3, 4)))
    kind = data.draw(st.sampled_from(strategies.ALIGNED))
    case = data.draw(kind(shape))
    slopes = np.linspace(0.1, 1.0, shape.N)
    check_against_reference(shape, case, {"alibi_slopes": slopes}, block=(3, 4))


# --- grouped heads ------------------------------------------------------------------------------


@pytest.mark.parametrize(("N", "K"), [(4, 4), (6, 2), (4, 1), (12, 3)])
@pytest.mark.parametrize("T", [1, 9])
def test_grouped_heads(implementation: str, N: int, K: int, T: int) -> None:
    """Query heads n with n // (N/K) = k read key/value head k; its gradient is their sum."""
    shape = Shape(B=2, T=T, S=11, N=N, K=K, H=3, V=5)
    case = dense_case(np.random.default_rng(0).random((2, N, T, 11)) < 0.7, shape)
    bias = np.random.default_rng(1).normal(size=(1, N, T, 11))
    check_against_reference(shape, case, {"bias": bias}, block=(4, 4))
    query, key, value = shape.inputs(0)
    repeated = [np.repeat(x, N // K, axis=2) for x in (key, value)]
    np.testing.assert_allclose(
        ops.dot_product_attention(query, key, value),
        ops.dot_product_attention(query, *repeated),
        atol=1e-13,
    )


# --- log-sum-exp --------------------------------------------------------------------------------


def test_asking_for_more_never_changes_the_output(implementation: str) -> None:
    inputs = SHAPE.inputs(0, "float32")
    for options in ({}, {"mask": np.arange(11) < 5}, {"dropout": 0.4, "seed": 2}):
        alone = ops.dot_product_attention(*inputs, **options)
        ops.attention_weights(*inputs[:2], **options)
        with_lse, _ = ops.dot_product_attention(*inputs, return_lse=True, **options)
        np.testing.assert_array_equal(with_lse, alone)
        moved = [np.swapaxes(np.repeat(x, 4 // x.shape[2], axis=2), 1, 2) for x in inputs]
        plain = ops.scaled_dot_product_attention(*moved, **options)
        asked, _ = ops.scaled_dot_product_attention(*moved, return_weights=True, **options)
        np.testing.assert_array_equal(asked, plain)
