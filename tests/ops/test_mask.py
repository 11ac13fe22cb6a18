"""`Mask`: each rule follows its definition, alone and joined, as a tensor and inside the ops."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed import ops
from heed.ops import Mask
from heed.ops.mask_rules import key_range
from heed.ops.sizes import Span
from tests import reference, reference_masks, strategies, tolerances
from tests.backend import on_tensorflow, tf
from tests.ops.harness import check_against_reference, share_of_examples, small_blocks
from tests.strategies import BLOCKS, Shape

KINDS = (*strategies.ALIGNED, *strategies.OTHERS)


def full(dense: Any, shape: Shape) -> np.ndarray:
    return np.broadcast_to(dense, (shape.B, shape.N, shape.T, shape.S))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_each_kind_means_its_definition(kind: Any, data: st.DataObject) -> None:
    shape = data.draw(strategies.shapes())
    case = data.draw(kind(shape))
    dense = case.build().to_dense(shape.T, shape.S)
    assert keras.backend.standardize_dtype(dense.dtype) == "bool"
    np.testing.assert_array_equal(full(dense, shape), full(case.dense, shape))


@given(data=st.data())
def test_joined_masks_attend_where_all_do(data: st.DataObject) -> None:
    """Including parts with different aligns."""
    shape = data.draw(strategies.shapes())
    case = data.draw(strategies.masks(shape, least=2, most=5))
    dense = case.build().to_dense(shape.T, shape.S)
    np.testing.assert_array_equal(full(dense, shape), full(case.dense, shape))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_no_key_is_visible_outside_of_the_range_that_is_computed(
    kind: Any, data: st.DataObject
) -> None:
    """For a few queries at a time, as in blocks."""
    shape = data.draw(strategies.shapes())
    case = data.draw(kind(shape))
    rules, count = case.build().rules, data.draw(st.integers(1, 3))
    for begin in range(0, shape.T, count):
        queries = Span(begin, min(count, shape.T - begin))
        lo, hi = (int(n) for n in key_range(rules, queries, shape.T, shape.S))
        seen = np.flatnonzero(case.dense[:, :, begin : queries.end].any(axis=(0, 1, 2)))
        assert all(lo <= key < hi for key in seen), (begin, count, lo, hi, seen)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@share_of_examples(5)
@given(data=st.data())
def test_each_kind_inside_attention(implementation: str, kind: Any, data: st.DataObject) -> None:
    block = data.draw(st.sampled_from(BLOCKS))
    shape = data.draw(strategies.shapes(block))
    case = data.draw(kind(shape))
    check_against_reference(shape, case, {}, block=block)


@share_of_examples(2)
@given(data=st.data())
def test_joined_masks_inside_attention(implementation: str, data: st.DataObject) -> None:
    block = data.draw(st.sampled_from(BLOCKS))
    shape = data.draw(strategies.shapes(block))
    case = data.draw(strategies.masks(shape, least=2, most=4))
    check_against_reference(shape, case, {}, block=block)


@given(data=st.data())
def test_a_plain_array_goes_wherever_a_mask_goes(implementation: str, data: st.DataObject) -> None:
    """Of bool or integers, NumPy or tensor."""
    shape = data.draw(strategies.shapes())
    array = data.draw(strategies.dense_arrays(shape))
    inputs = shape.inputs(0)
    expected = reference.dot_product_attention(*inputs, mask=array)
    dtype = data.draw(st.sampled_from(("bool", "int32", "uint8", "int64")))
    for mask in (array.astype(dtype), keras.ops.convert_to_tensor(array.astype(dtype))):
        with small_blocks((4, 4)):
            out = ops.dot_product_attention(*inputs, mask=mask)
        tolerances.assert_values(out, expected.out, "float64")


@pytest.mark.parametrize(
    "make", [np.asarray, keras.ops.convert_to_tensor, list], ids=["numpy", "tensor", "list"]
)
def test_numbers_inside_a_mask_can_be_arrays_tensors_or_lists(make: Any) -> None:
    lengths, ids, starts = [2, 0], [[1, 1, 2], [3, 4, 4]], [1, -1]
    for mask, expected in (
        (Mask.lengths(make(lengths)), reference_masks.lengths(2, 3, 3, lengths)),
        (Mask.segments(make(ids)), reference_masks.segments(2, 3, 3, ids)),
        (Mask.causal(align=make(starts)), reference_masks.causal(2, 3, 3, starts)),
        (Mask.prefix(make(lengths)), reference_masks.prefix(2, 3, 3, lengths)),
    ):
        np.testing.assert_array_equal(mask.to_dense(3, 3), expected)


@on_tensorflow
def test_align_can_be_a_scalar_tensor(implementation: str) -> None:
    """Inside a `tf.function`, like a cache index; one trace serves all positions."""
    shape = Shape(T=2, S=9)
    inputs = shape.inputs(0)
    traces = []

    @tf.function
    def step(index: tf.Tensor) -> tf.Tensor:
        traces.append(index)
        return ops.dot_product_attention(*inputs, mask=Mask.causal(align=index))

    with small_blocks((2, 4)):
        for index in (0, 3, 7):
            expected = reference.dot_product_attention(
                *inputs, mask=reference_masks.causal(2, 2, 9, index)
            )
            tolerances.assert_values(step(tf.constant(index)), expected.out, "float64")
    assert len(traces) == 1


def test_causal_is_top_left_by_default(implementation: str) -> None:
    """Including different lengths, by flag and by mask."""
    for T, S in ((3, 7), (7, 3), (1, 6)):
        inputs = Shape(T=T, S=S).inputs(0)
        expected = reference.dot_product_attention(*inputs, mask=np.tril(np.ones((T, S), bool)))
        flag = ops.dot_product_attention(*inputs, is_causal=True)
        tolerances.assert_values(flag, expected.out, "float64")
        mask = ops.dot_product_attention(*inputs, mask=Mask.causal())
        np.testing.assert_array_equal(mask, flag)
        np.testing.assert_array_equal(
            Mask.causal().to_dense(T, S), Mask.causal(align="top_left").to_dense(T, S)
        )


def test_blocked_is_the_opposite_of_dense() -> None:
    look_ahead = 1.0 - np.tril(np.ones((5, 5)))  # the convention of tutorials: 1 = ignore
    for dtype in (np.float32, np.int32, bool):
        dense = Mask.blocked(look_ahead.astype(dtype)).to_dense(5, 5)
        expected = np.tril(np.ones((5, 5), bool))
        np.testing.assert_array_equal(dense, np.broadcast_to(expected, dense.shape))


@given(data=st.data())
def test_kept_fraction_is_the_share_of_the_dense_mask(data: st.DataObject) -> None:
    shape = data.draw(strategies.shapes())
    case = data.draw(strategies.masks(shape))
    mask = case.build()
    fraction = float(mask.kept_fraction(shape.T, shape.S))
    dense = np.asarray(mask.to_dense(shape.T, shape.S))
    assert fraction == pytest.approx(dense.mean(), abs=1e-6)


def test_draw_shows_a_line_for_each_query() -> None:
    drawn = ["".join(line.split()) for line in Mask.causal().draw(3, 4).splitlines()]
    shown, hidden = drawn[2][0], drawn[0][3]
    assert shown != hidden
    assert drawn == [shown + 3 * hidden, 2 * shown + 2 * hidden, 3 * shown + hidden]
    second = Mask.lengths([1, 3]).draw(1, 4, batch=1)
    assert "".join(second.split()) == 3 * shown + hidden


def test_equal_masks_of_plain_numbers_are_equal() -> None:
    """So a `tf.function` does not trace anew for them."""
    assert Mask.causal() & Mask.window(3, 0) == Mask.causal() & Mask.window(3, 0)
    assert hash(Mask.causal()) == hash(Mask.causal())
    assert Mask.causal() != Mask.causal(align="bottom_right")
    assert Mask.window(3, 0) != Mask.window(4, 0)
    assert Mask.lengths([1]) != Mask.lengths([2])


def test_a_mask_says_what_it_is() -> None:
    text = repr(Mask.causal() & Mask.lengths([3]))
    assert "Lengths" in text or "lengths" in text
    assert "3" in text
