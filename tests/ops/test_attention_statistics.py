"""`attention_statistics`: entropy, distance and mass of each row; and weights from a log-sum-exp."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed import ops
from tests import reference, strategies, tolerances
from tests.backend import on_tensorflow, tf
from tests.ops.harness import op_options, reference_options, share_of_examples, small_blocks
from tests.ops.test_attention_memory import (
    HEADS,
    LENGTH,
    WIDTH,
    largest_tensor,
    linear_bound,
    masks,
)
from tests.slow import slow
from tests.strategies import Shape

Array = np.ndarray
SHAPE = Shape(B=2, T=7, S=9, N=4, K=2, H=4, V=3)


def expected_statistics(weights: Array, align: Any, keys: list[int]) -> tuple[Array, ...]:
    """Return the statistics of whole rows of weights (B,N,T,S), by the formulas."""
    batch, _, queries, length = weights.shape
    terms = np.where(weights > 0, weights * np.log(np.where(weights > 0, weights, 1)), 0.0)
    start = np.broadcast_to(np.asarray(align), (batch,))[:, None, None]
    distance = np.abs(start + np.arange(queries)[:, None] - np.arange(length))
    return (
        -terms.sum(-1),
        np.einsum("bnts,bts->bnt", weights, distance.astype(float)),
        weights[..., keys],
    )


@share_of_examples(2)
@given(data=st.data())
def test_statistics_agree_with_the_reference(data: st.DataObject) -> None:
    """Every mask, rows without keys, every option, blocks of any size, chosen keys in any order."""
    block = data.draw(st.sampled_from(strategies.BLOCKS))
    shape, case, options = data.draw(strategies.problems(block=block))
    keys = data.draw(st.lists(st.integers(0, shape.S - 1), max_size=3))
    inputs = shape.inputs(0)
    with small_blocks(block):
        actual = ops.attention_statistics(
            *inputs[:2], mask=case.build(), keys=keys, **op_options(options, "float64")
        )
    forward = reference.dot_product_attention(
        *inputs, **reference_options(options, case, "float64")
    )
    expected = expected_statistics(forward.weights, case.align, keys)
    for name, value, wanted in zip(actual._fields, actual, expected, strict=True):
        tolerances.assert_statistics(value, wanted, "float64", name)


@pytest.mark.parametrize("dtype", strategies.DTYPES)
def test_types(dtype: str) -> None:
    query, key, value = SHAPE.inputs(0, dtype)
    actual = ops.attention_statistics(query, key, is_causal=True, keys=[0, 8])
    rounded = [tolerances.to_numpy(x).astype(np.float64) for x in (query, key, value)]
    mask = np.tril(np.ones((7, 9), bool))
    weights = reference.dot_product_attention(*rounded, mask=mask).weights
    expected = expected_statistics(weights, 0, [0, 8])
    for value, wanted in zip(actual, expected, strict=True):
        assert keras.backend.standardize_dtype(value.dtype) == (
            "float64" if dtype == "float64" else "float32"
        )
        tolerances.assert_statistics(value, wanted, dtype)


def test_many_hidden_keys_before_the_first_visible_one() -> None:
    """Hidden scores are replaced by huge numbers, of which hundreds must not sum to infinity."""
    query, key = (x[..., :1, :] for x in Shape(B=1, T=1, S=2000).inputs(0, "float32")[:2])
    mask = ops.Mask.dense(np.arange(2000) >= 1990)
    with small_blocks((1, 512)):
        actual = ops.attention_statistics(query, key, mask=mask, keys=[0, 1995])
    weights = np.asarray(ops.attention_weights(query, key, mask=mask)).astype(np.float64)
    for x, wanted in zip(actual, expected_statistics(weights, 0, [0, 1995]), strict=True):
        tolerances.assert_statistics(x, wanted, "float32")


@pytest.mark.parametrize("size", ["B", "T", "S"])
def test_empty(size: str) -> None:
    shape = Shape(**{"B": 2, "T": 3, "S": 4, size: 0})
    query, key, _ = shape.inputs(0)
    actual = ops.attention_statistics(query, key, keys=[] if size == "S" else [1])
    assert actual.entropy.shape == actual.distance.shape == (shape.B, 2, shape.T)
    assert actual.mass.shape == (shape.B, 2, shape.T, 0 if size == "S" else 1)
    assert not any(np.asarray(x).any() for x in actual)


@pytest.mark.parametrize("spread", [1.0, 1e3, 1e5])
def test_large_scores_lose_nothing(spread: float) -> None:
    """The entropy of two equal scores is ln 2, however large they are, in any blocks."""
    query = np.full((1, 1, 1, 1), spread, "float32")
    key = np.array([-1.0, 1.0, 0.5, -1.0, 1.0], "float32").reshape(1, 5, 1, 1)
    with small_blocks((1, 2)):
        actual = ops.attention_statistics(query * 30, key, keys=[1, 2])
    np.testing.assert_allclose(actual.entropy, np.log(2), rtol=1e-5)
    np.testing.assert_allclose(actual.distance, 2.5, rtol=1e-5)
    np.testing.assert_allclose(actual.mass[0, 0, 0], [0.5, 0.0], atol=1e-5)


def test_what_is_not_finite_stays_in_the_rows_that_see_it() -> None:
    query, key, _ = SHAPE.inputs(0)
    whole = ops.attention_statistics(query, key, is_causal=True, keys=[0])
    key[0, 4, 0, 0] = np.nan  # head 0 of the keys serves query heads 0 and 1
    query[1, 2, 3, 0] = np.inf
    with small_blocks((2, 3)):
        actual = ops.attention_statistics(query, key, is_causal=True, keys=[0])
    broken = np.zeros((2, 4, 7), bool)
    broken[0, :2, 4:] = broken[1, 3, 2] = True
    for x, sound in zip(actual, whole, strict=True):
        assert np.isnan(np.asarray(x)[broken]).all()
        np.testing.assert_allclose(np.asarray(x)[~broken], np.asarray(sound)[~broken], atol=1e-12)


@on_tensorflow
@pytest.mark.parametrize(
    "how", ["BNTH", "unknown sizes", pytest.param("compiled", marks=pytest.mark.slow)]
)
def test_the_other_layout_unknown_sizes_and_compilation(how: str) -> None:
    query, key, _ = SHAPE.inputs(0)
    options: dict[str, Any] = {"mask": ops.Mask.window(3, 2), "keys": [2]}
    expected = ops.attention_statistics(query, key, **options)
    swapped = [np.swapaxes(x, 1, 2) for x in (query, key)]
    specs = [tf.TensorSpec((None, None, *x.shape[2:]), tf.float64) for x in (query, key)]

    def run(query: tf.Tensor, key: tf.Tensor) -> Any:
        return ops.attention_statistics(query, key, **options)

    with small_blocks((3, 4)):
        if how == "BNTH":
            actual = ops.attention_statistics(*swapped, layout="BNTH", **options)
        elif how == "compiled":
            actual = tf.function(run, jit_compile=True)(query, key)
        else:
            actual = tf.function(run, input_signature=specs)(query, key)
    for x, wanted in zip(actual, expected, strict=True):
        tolerances.assert_statistics(x, wanted, "float64")


@on_tensorflow
@pytest.mark.parametrize("kind", ["segments", *slow(["causal"])])  # a range of tensors, or static
def test_no_tensor_of_all_weights_in_the_graph(kind: str) -> None:
    spec = tf.TensorSpec((1, LENGTH, HEADS, WIDTH), tf.float32)
    mask = masks()[kind]
    traced = tf.function(
        lambda *x: ops.attention_statistics(*x, mask=mask, keys=[0, 9])
    ).get_concrete_function(spec, spec)
    elements, where = largest_tensor(traced.graph)
    assert elements <= linear_bound(), where


# Chosen keys of `attention_weights`, and weights from a log-sum-exp


@share_of_examples(3)
@given(data=st.data())
def test_weights_from_the_log_sum_exp(implementation: str, data: st.DataObject) -> None:
    block = data.draw(st.sampled_from(strategies.BLOCKS))
    shape, case, options = data.draw(strategies.problems(block=block, dropout=True))
    if options.get("dropout"):
        options["seed"] = 3
    inputs = shape.inputs(0)
    passed = {"mask": case.build(), **op_options(options, "float64")}
    choice = {
        name: data.draw(st.none() | st.lists(st.integers(0, size - 1), max_size=3))
        for name, size in (("heads", shape.N), ("rows", shape.T), ("keys", shape.S))
    }
    _, lse = ops.dot_product_attention(*inputs, return_lse=True, **passed)
    whole = np.asarray(ops.attention_weights(*inputs[:2], **passed))
    for axis, chosen in enumerate(choice.values(), 1):
        whole = whole if chosen is None else np.take(whole, np.array(chosen, int), axis)
    for known in (None, lse):
        part = ops.attention_weights(*inputs[:2], lse=known, **choice, **passed)
        assert part.shape == whole.shape
        np.testing.assert_allclose(part, whole, atol=1e-12)


@on_tensorflow
def test_only_the_scores_of_chosen_keys_are_computed() -> None:
    spec = tf.TensorSpec((1, LENGTH, HEADS, WIDTH), tf.float32)
    lse = tf.TensorSpec((1, HEADS, LENGTH), tf.float32)

    def column(query: tf.Tensor, key: tf.Tensor, lse: tf.Tensor) -> tf.Tensor:
        return ops.attention_weights(query, key, is_causal=True, keys=[0, 7], lse=lse)

    traced = tf.function(column).get_concrete_function(spec, spec, lse)
    elements, where = largest_tensor(traced.graph)
    assert elements <= linear_bound(), where


def test_a_broken_row_of_the_log_sum_exp_breaks_what_the_row_sees() -> None:
    """The nonfinite key need not be among the chosen ones."""
    query, key, value = SHAPE.inputs(0)
    key[0, 4, 0, 0] = np.nan
    _, lse = ops.dot_product_attention(query, key, value, is_causal=True, return_lse=True)
    part = np.asarray(ops.attention_weights(query, key, is_causal=True, keys=[0, 6], lse=lse))
    whole = np.asarray(ops.attention_weights(query, key, is_causal=True))[..., [0, 6]]
    np.testing.assert_allclose(part, whole, atol=1e-12)
    assert np.isnan(part[0, 0, 4, 0])


def test_rows_without_keys_weigh_nothing_from_the_log_sum_exp() -> None:
    """Their keys are hidden by a mask or by a bias of minus infinity."""
    query, key, value = SHAPE.inputs(0)
    hidden = np.arange(7)[:, None] == 3
    for options in ({"mask": ~hidden}, {"bias": np.where(hidden, -np.inf, 0.0)}):
        _, lse = ops.dot_product_attention(query, key, value, return_lse=True, **options)
        part = np.asarray(ops.attention_weights(query, key, keys=[2], lse=lse, **options))
        assert (part[:, :, 3] == 0).all()
        assert (np.delete(part, 3, axis=2) > 0).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"keys": [9]}, ValueError, r"`keys` must be in \[0, 9\). Received: keys=\[9\]"),
        ({"keys": [-1]}, ValueError, r"`keys` must be in \[0, 9\)"),
        ({"keys": [0.5]}, TypeError, "`keys` must be a list of integers"),
        ({"lse": np.zeros((2, 7, 4))}, ValueError, r"`lse` must have shape \(B, N, T\)"),
        ({"lse": np.zeros((2, 4, 7), int)}, TypeError, "`lse` must hold floating-point numbers"),
    ],
)
def test_bad_choices_are_named(options: Any, error: type[Exception], message: str) -> None:
    query, key, _ = SHAPE.inputs(0)
    with pytest.raises(error, match=message):
        ops.attention_weights(query, key, **options)
    if "lse" not in options:
        with pytest.raises(error, match=message):
            ops.attention_statistics(query, key, **options)
