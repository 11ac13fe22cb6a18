"""The exportable form, one expression without loops, agrees with the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.about_tensorflow import tf

# isort: split
import heed
from heed import ops
from heed.ops import Mask
from heed.ops.backends.tensorflow import exportable
from heed.ops.scores import DotScore
from tests import reference, reference_masks, strategies, tolerances
from tests.ops.harness import op_options, reference_options, to_float64
from tests.ops.test_additive import draw_inputs
from tests.strategies import MaskCase, Shape

LOOPS = {"While", "StatelessWhile", "TensorListReserve", "TensorListFromTensor"}


@pytest.fixture(autouse=True)
def _exportable() -> Any:
    with heed.set_implementation("exportable"):
        yield


def check(
    shape: Shape,
    case: MaskCase | None = None,
    options: dict[str, Any] | None = None,
    *,
    dtype: str = "float64",
    layout: str = "BTNH",
) -> None:
    """Check that output, log-sum-exp and weights agree with the reference."""
    inputs = shape.inputs(0, dtype)
    passed = op_options(options or {}, dtype)
    if case is not None:
        passed["mask"] = case.build()
    expected = reference.dot_product_attention(
        *map(to_float64, inputs), **reference_options(options or {}, case, dtype)
    )
    turned = [np.swapaxes(x, 1, 2) if layout == "BNTH" else x for x in inputs]
    out, lse = ops.dot_product_attention(*turned, return_lse=True, layout=layout, **passed)
    weights = ops.attention_weights(*turned[:2], layout=layout, **passed)
    assert out.dtype == dtype
    out = np.swapaxes(out, 1, 2) if layout == "BNTH" else out
    tolerances.assert_values(out, expected.out, dtype, "out")
    tolerances.assert_statistics(lse, expected.lse, dtype, "lse")
    tolerances.assert_statistics(weights, expected.weights, dtype, "weights")


@given(data=st.data())
def test_anything_agrees_with_the_reference(data: st.DataObject) -> None:
    """Grouped heads, masks joined, bias, ALiBi, soft cap, scale."""
    check(*data.draw(strategies.problems(block=(4, 4))))


@pytest.mark.parametrize("layout", ["BTNH", "BNTH"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_each_dtype_and_layout(dtype: str, layout: str) -> None:
    shape = Shape(N=6, K=2, V=3)
    causal = MaskCase("causal", Mask.causal, reference_masks.causal(2, 5, 6))
    options = {"bias": np.random.default_rng(0).normal(size=(6, 5, 6)), "soft_cap": 2.0}
    check(shape, causal, options, dtype=dtype, layout=layout)


@pytest.mark.parametrize("hiding", [-np.inf, -1e30, -3e38])
def test_a_bias_hides(hiding: float) -> None:
    """Keys, and one row whole; -1e29 everywhere is an ordinary number."""
    bias = np.zeros((2, 1, 5, 6))
    bias[:, :, 1], bias[:, :, 2, 3:], bias[:, :, 3] = hiding, hiding, -1e29
    check(Shape(), None, {"bias": bias})
    check(Shape(), None, {"bias": bias}, dtype="float32")
    out = ops.dot_product_attention(*Shape().inputs(0), bias=bias)
    assert not np.asarray(out)[:, 1].any()


def test_a_row_that_sees_nothing_is_0() -> None:
    query, key, value = Shape().inputs(0, "float32")
    mask = Mask.lengths([0, 6], [5, 2])
    out, lse = ops.dot_product_attention(query, key, value, mask=mask, return_lse=True)
    weights = np.asarray(ops.attention_weights(query, key, mask=mask))
    for batch, rows in ((0, slice(None)), (1, slice(2, None))):
        assert not np.asarray(out)[batch, rows].any()
        assert not weights[batch, :, rows].any()
        assert np.isneginf(np.asarray(lse)[batch, :, rows]).all()
    assert np.asarray(out)[1, :2].all()


def test_scores_beyond_float16_do_not_overflow() -> None:
    query, key, value = (x * 100 for x in Shape(H=64).inputs(0, "float16"))
    out = ops.dot_product_attention(query, key, value / 100)
    expected = reference.dot_product_attention(*map(to_float64, (query, key, value / 100)))
    tolerances.assert_values(out, expected.out, "float16")


@pytest.mark.parametrize("empty", ["B", "T", "S"])
def test_empty_sizes(empty: str) -> None:
    shape = Shape(**{empty: 0})
    out = ops.dot_product_attention(*shape.inputs(0), is_causal=True)
    assert out.shape == (shape.B, shape.T, shape.N, shape.V)
    assert not np.asarray(out).any()


def test_chosen_weights() -> None:
    query, key, _ = Shape(N=4).inputs(0)
    every = np.asarray(ops.attention_weights(query, key))
    some = ops.attention_weights(query, key, heads=[2, 0], rows=[4], keys=[1, 5])
    np.testing.assert_array_equal(some, every[:, [2, 0]][:, :, [4]][:, :, :, [1, 5]])


@given(data=st.data())
def test_additive_attention(data: st.DataObject) -> None:
    shape = data.draw(strategies.shapes(grouped=False))
    shape = Shape(shape.B, shape.T, shape.S, 1, 1, shape.H, shape.V)
    case = data.draw(strategies.masks(shape, among=strategies.HEADLESS))
    dtype = data.draw(st.sampled_from(("float64", "float32", "float16")))
    inputs = draw_inputs(shape.B, shape.T, shape.S, shape.H, shape.V, dtype=dtype)
    query, key, value, vector, bias = inputs
    options = {"bias": bias, "mask": case.build()}
    out, lse = ops.additive_attention(query, key, value, vector, return_lse=True, **options)
    weights = ops.additive_attention_weights(query, key, vector, **options)
    exact = [to_float64(x) for x in inputs]
    expected = reference.additive_attention(*exact[:4], bias=exact[4], mask=case.dense[:, 0])
    assert out.dtype == dtype
    tolerances.assert_values(out, expected.out, dtype, "out")
    tolerances.assert_statistics(lse, expected.lse, dtype, "lse")
    tolerances.assert_statistics(weights, expected.weights, dtype, "weights")


# By name: a mask from integers (B,), and from (B, T) and (B, S).
DYNAMIC: dict[str, Callable[[Any, Any], Mask]] = {
    "causal": lambda lengths, ids: Mask.causal(),
    "bottom_right": lambda lengths, ids: Mask.causal(align="bottom_right"),
    "align": lambda lengths, ids: Mask.causal(align=lengths),
    "window": lambda lengths, ids: Mask.window(2, 1),
    "dilated": lambda lengths, ids: Mask.dilated(2, align="bottom_right"),
    "prefix": lambda lengths, ids: Mask.prefix(lengths),
    "lengths": lambda lengths, ids: Mask.lengths(lengths),
    "segments": lambda lengths, ids: Mask.segments(*ids),
    "dense": lambda lengths, ids: Mask.dense((ids[0] > 0)[:, None, :, None]),
    "causal and lengths": lambda lengths, ids: Mask.causal() & Mask.lengths(lengths),
}


# Masks whose numbers or positions depend on inputs of the graph; the others are slow.
FROM_TENSORS = ("bottom_right", "align", "segments", "causal and lengths")


@pytest.mark.parametrize(
    "kind",
    [pytest.param(x, marks=[] if x in FROM_TENSORS else pytest.mark.slow) for x in DYNAMIC],
)
def test_one_graph_without_loops_serves_all_sizes(kind: str) -> None:
    build = DYNAMIC[kind]
    floats, ints = tf.float64, tf.int32

    @tf.function(
        input_signature=[
            tf.TensorSpec((None, None, 4, 3), floats),
            tf.TensorSpec((None, None, 2, 3), floats),
            tf.TensorSpec((None, None, 2, 5), floats),
            tf.TensorSpec((None,), ints),
            tf.TensorSpec((None, None), ints),
            tf.TensorSpec((None, None), ints),
        ]
    )
    def attend(query: Any, key: Any, value: Any, lengths: Any, rows: Any, columns: Any) -> Any:
        mask = build(lengths, (rows, columns))
        return ops.dot_product_attention(
            query, key, value, mask=mask, alibi_slopes=[0.1, 0.2, 0.3, 0.4], return_lse=True
        )

    used = {node.op for node in attend.get_concrete_function().graph.as_graph_def().node}
    assert not used & LOOPS
    rng = np.random.default_rng(0)
    for B, T, S in ((1, 1, 1), (2, 5, 7), (3, 6, 4)):
        inputs = Shape(B, T, S, 4, 2, 3, 5).inputs(1)
        lengths = rng.integers(0, S + 1, B).astype("int32")
        ids = [rng.integers(0, 2, (B, length)).astype("int32") for length in (T, S)]
        dense = np.broadcast_to(build(lengths, ids).to_dense(T, S), (B, 4, T, S))
        align = {"bottom_right": S - T, "dilated": S - T, "align": lengths}.get(kind, 0)
        expected = reference.dot_product_attention(
            *inputs,
            mask=dense,
            align=align,
            alibi_slopes=np.asarray([0.1, 0.2, 0.3, 0.4], np.float32).astype(float),
        )
        out, lse = attend(*inputs, lengths, *ids)
        np.testing.assert_allclose(out, expected.out, atol=1e-6)
        np.testing.assert_allclose(lse, expected.lse, atol=1e-6)


def test_a_core_takes_the_place_of_scaled_products() -> None:
    """It receives tensors with heads in front, and the mask without its causal rule."""
    query, key, value = Shape(T=6, N=4).inputs(0)
    seen = []

    def core(*arguments: Any) -> Any:
        seen.append(arguments)
        return exportable.attention(*arguments)

    mask = Mask.causal() & Mask.lengths([3, 6])
    expected = ops.dot_product_attention(query, key, value, mask=mask, soft_cap=3.0, scale=0.5)
    with exportable.replace_attention(core):
        out = ops.dot_product_attention(query, key, value, mask=mask, soft_cap=3.0, scale=0.5)
    np.testing.assert_array_equal(out, expected)
    ((asked, keys, _, visible, bias, expression),) = seen
    assert (asked.shape, keys.shape) == ((2, 4, 6, 4), (2, 2, 6, 4))
    assert (visible.shape, bias) == ((2, 1, 1, 6), None)
    assert expression == exportable.Expression(DotScore(0.5, 3.0), True)


def test_caches_grow_inside_of_growing_alone() -> None:
    """Writing T entries behind P entries gives P + T entries."""
    past, update = tf.random.normal((2, 3, 4)), tf.random.normal((2, 1, 4))
    with exportable.grow_caches() as with_room:
        cache = with_room(past, 1)
        assert cache.shape == (2, 4, 4)
        written = exportable.ExportableFusedOps().write(cache, update, tf.constant(3))
        np.testing.assert_array_equal(written, tf.concat([past, update], 1))
    assert exportable.ExportableFusedOps().write(cache, update, tf.constant(3)) is None


def test_dropout_is_refused() -> None:
    with pytest.raises(ValueError, match=r"exportable implementation cannot run.*no dropout"):
        ops.dot_product_attention(*Shape().inputs(0), dropout=0.1)
