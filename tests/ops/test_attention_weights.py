"""`attention_weights`: the weights behind the output, whole or for chosen heads and rows."""

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
from tests.backend import on_tensorflow, tf, vjp
from tests.ops.harness import op_options, reference_options, small_blocks
from tests.strategies import Shape

SHAPE = Shape(B=2, T=7, S=9, N=4, K=2, H=4, V=3)


@given(data=st.data())
def test_weights_agree_with_the_reference(implementation: str, data: st.DataObject) -> None:
    block = data.draw(st.sampled_from(strategies.BLOCKS))
    shape, case, options = data.draw(strategies.problems(block=block))
    inputs = shape.inputs(0)
    with small_blocks(block):
        weights = ops.attention_weights(
            *inputs[:2], mask=case.build(), **op_options(options, "float64")
        )
    expected = reference.dot_product_attention(
        *inputs, **reference_options(options, case, "float64")
    )
    tolerances.assert_statistics(weights, expected.weights, "float64")


@pytest.mark.parametrize("dtype", strategies.DTYPES)
def test_rows_sum_to_one_or_nothing(implementation: str, dtype: str) -> None:
    query, key, _ = SHAPE.inputs(0, dtype)
    mask = ops.Mask.causal(align=-2)
    sums = np.asarray(ops.attention_weights(query, key, mask=mask)).sum(axis=-1)
    np.testing.assert_allclose(sums[:, :, 2:], 1.0, atol=1e-5)
    assert not sums[:, :, :2].any()


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_weights_times_values_is_the_output(implementation: str, dropout: float) -> None:
    query, key, value = SHAPE.inputs(0)
    options: dict[str, Any] = {
        "mask": ops.Mask.window(3, 2) & ops.Mask.lengths([9, 5]),
        "soft_cap": 3.0,
        "dropout": dropout,
        "seed": 5,
    }
    weights = ops.attention_weights(query, key, **options)
    out = ops.dot_product_attention(query, key, value, **options)
    expected = np.einsum("bnts,bsnv->btnv", weights, np.repeat(value, 2, axis=2))
    tolerances.assert_values(out, expected, "float64")


CHOICES: list[tuple[Any, Any]] = [
    ([1], None),
    ([3, 0, 3], None),
    (None, [6]),
    (None, [5, 0, 5]),
    ([2, 1], [0, 6, 3]),
    ([], [0]),
    ([0], []),
]


@pytest.mark.parametrize(("heads", "rows"), CHOICES)
def test_chosen_heads_and_rows_are_a_part_of_the_whole(
    implementation: str, heads: Any, rows: Any
) -> None:
    """In the requested order, with every per-head, per-row and per-key option."""
    query, key, _ = SHAPE.inputs(0)
    rng = np.random.default_rng(1)
    options: dict[str, Any] = {
        "mask": ops.Mask.causal(align=[1, 3]) & ops.Mask.dense(rng.random((2, 4, 7, 9)) < 0.8),
        "bias": rng.normal(size=(2, 4, 7, 9)),
        "alibi_slopes": ops.alibi_slopes(4),
        "dropout": 0.3,
        "seed": 2,
    }
    whole = np.asarray(ops.attention_weights(query, key, **options))
    expected = whole if heads is None else whole[:, heads]
    expected = expected if rows is None else expected[:, :, rows]
    with small_blocks((2, 4)):
        part = ops.attention_weights(query, key, heads=heads, rows=rows, **options)
    assert part.shape == expected.shape
    np.testing.assert_allclose(part, expected, atol=1e-13)


def test_the_rows_of_every_kind_of_mask(implementation: str) -> None:
    query, key, _ = SHAPE.inputs(0)
    rng = np.random.default_rng(1)
    for mask in (
        ops.Mask.causal(),
        ops.Mask.causal(align="bottom_right"),
        ops.Mask.window(1, 2),
        ops.Mask.lengths([9, 4], [6, 3]),
        ops.Mask.segments(rng.integers(0, 2, (2, 7)), rng.integers(0, 2, (2, 9))),
        ops.Mask.prefix([2, 5]),
        ops.Mask.dense(rng.random((2, 1, 7, 9)) < 0.5),
        ops.Mask.dense(rng.random((4, 1, 9)) < 0.5),
    ):
        whole = np.asarray(ops.attention_weights(query, key, mask=mask))
        part = ops.attention_weights(query, key, mask=mask, heads=[3, 1], rows=[6, 2])
        np.testing.assert_allclose(part, whole[:, [3, 1]][:, :, [6, 2]], atol=1e-13)


def test_the_other_layout(implementation: str) -> None:
    query, key, _ = SHAPE.inputs(0)
    swapped = [np.swapaxes(x, 1, 2) for x in (query, key)]
    np.testing.assert_allclose(
        ops.attention_weights(*swapped, layout="BNTH", is_causal=True),
        ops.attention_weights(query, key, is_causal=True),
        atol=1e-13,
    )


def test_weights_have_gradients(implementation: str) -> None:
    """A loss may use them."""
    query, key = (keras.ops.convert_to_tensor(x) for x in SHAPE.inputs(0)[:2])
    identity = keras.ops.convert_to_tensor(np.broadcast_to(np.eye(9)[None, :, None], (2, 9, 2, 9)))
    d_weights = np.random.default_rng(2).normal(size=(2, 4, 7, 9))
    mask = ops.Mask.causal(align=-1)
    with small_blocks((3, 4)):
        _, pull = vjp(functools.partial(ops.attention_weights, mask=mask), query, key)
    actual = pull(d_weights)
    # With one-hot values the output is the weights.
    expected = reference.dot_product_attention_backward(
        query,
        key,
        identity,
        np.moveaxis(d_weights, 1, 2),
        mask=np.tril(np.ones((7, 9), bool), -1),
    )
    tolerances.assert_gradients(actual[0], expected.query, "float64")
    tolerances.assert_gradients(actual[1], expected.key, "float64")


@on_tensorflow
def test_a_mask_of_rows_alone_over_keys_of_unknown_number() -> None:
    query, key, _ = SHAPE.inputs(0)
    rows = np.arange(7)[:, None] < np.array([7, 4])[:, None, None, None]  # (B, 1, T, 1)
    keys = tf.TensorSpec([None, None, key.shape[2], key.shape[3]], tf.float64)

    @tf.function(input_signature=[tf.TensorSpec([None, None, *query.shape[2:]], tf.float64), keys])
    def weights(query: Any, key: Any) -> Any:
        return ops.attention_weights(query, key, mask=rows)

    expected = ops.attention_weights(query, key, mask=rows)
    np.testing.assert_allclose(weights(query, key), expected, atol=1e-13)
