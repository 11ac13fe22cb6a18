"""DotProductAttention: the role of keras.layers.Attention, over heed's op."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.layers import DotProductAttention
from tests import reference
from tests.backend import WrongValue
from tests.layers.stock import assert_close, randoms
from tests.tolerances import assert_values

SHAPES = [(2, 4, 6), (2, 5, 6)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("value_mask", [None, [[1, 1, 0, 1, 0], [1, 0, 0, 0, 0]]])
@pytest.mark.parametrize("query_mask", [None, [[1, 1, 0, 1], [0, 1, 1, 1]]])
def test_agrees_with_keras_attention(causal, value_mask, query_mask):
    arrays = randoms(*SHAPES)
    masks = [None if m is None else np.array(m, bool) for m in (query_mask, value_mask)]
    output, scores = DotProductAttention(scale=1.0)(
        *arrays,
        query_mask=masks[0],
        value_mask=masks[1],
        use_causal_mask=causal,
        return_attention_scores=True,
    )
    stock = keras.layers.Attention()
    try:
        expected, weights = stock(
            arrays, mask=masks, use_causal_mask=causal, return_attention_scores=True
        )
    except WrongValue:
        pytest.skip("this version of Keras cannot broadcast its mask")
    assert_close(output, expected)
    # Keras leaves weights in the rows of masked queries, although their output is 0.
    rows = slice(None) if masks[0] is None else masks[0]
    assert_close(np.asarray(scores)[rows], np.asarray(weights)[rows])
    if masks[0] is not None:
        assert np.all(np.asarray(scores)[~masks[0]] == 0)


@given(
    batch=st.integers(1, 3),
    queries=st.integers(0, 6),
    keys=st.integers(0, 6),
    width=st.integers(1, 5),
    scale=st.sampled_from([None, 1.0, 0.0, -2.0, 0.3]),
    soft_cap=st.sampled_from([None, 2.0]),
    masked=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_is_the_formula(batch, queries, keys, width, scale, soft_cap, masked, seed):
    query, key, value = randoms(
        (batch, queries, width), (batch, keys, width), (batch, keys, 3), seed=seed
    )
    mask = np.random.default_rng(seed).random((batch, queries, keys)) > 0.4
    layer = DotProductAttention(scale=scale, soft_cap=soft_cap)
    arguments = {"attention_mask": mask} if masked else {}
    output, scores = layer(query, value, key=key, return_attention_scores=True, **arguments)
    want = reference.dot_product_attention(
        *(x[:, :, None] for x in (query, key, value)),
        scale=scale,
        soft_cap=soft_cap,
        mask=mask[:, None] if masked else None,
    )
    assert_values(output, want.out[:, :, 0], "float32")
    assert_values(scores, want.weights[:, 0], "float32")


def test_implicit_masks():
    ids = np.array([[1, 2, 0], [3, 0, 0]])
    embedded = keras.layers.Embedding(4, 6, mask_zero=True)(ids)
    output, scores = DotProductAttention()(embedded, embedded, return_attention_scores=True)
    np.testing.assert_array_equal(output._keras_mask, ids != 0)
    seen = (ids != 0)[:, :, None] & (ids != 0)[:, None]
    np.testing.assert_array_equal(np.asarray(scores) > 0, seen)
    explicit = np.array([[1, 1, 1], [0, 1, 0]], bool)
    output = DotProductAttention()(embedded, embedded, query_mask=explicit)
    np.testing.assert_array_equal(output._keras_mask, explicit & (ids != 0))


def test_float64():
    arrays = randoms(*SHAPES, dtype="float64")
    want = reference.dot_product_attention(*(x[:, :, None] for x in (*arrays, arrays[1])))
    output = DotProductAttention(dtype="float64")(*arrays)
    assert_values(output, want.out[:, :, 0], "float64")
