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


def test_chosen_heads_and_rows_are_a_part_of_the_whole(implementation: str) -> None:
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
    with small_blocks((2, 4)):
        part = ops.attention_weights(query, key, heads=[2, 1, 2], rows=[5, 0, 5], **options)
    np.testing.assert_allclose(part, whole[:, [2, 1, 2]][:, :, [5, 0, 5]], atol=1e-13)
    for chosen, shape in (({"heads": []}, (2, 0, 7, 9)), ({"rows": []}, (2, 4, 0, 9))):
        assert ops.attention_weights(query, key, **chosen, **options).shape == shape


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
