"""LuongAttention: Luong's dot, general and scaled scores."""

import keras
import numpy as np
import pytest

from heed.layers import LuongAttention
from tests import reference
from tests.layers.stock import assert_close, randomise, randoms
from tests.tolerances import assert_values

SHAPES = [(2, 4, 6), (2, 5, 6)]


def built(score, *shapes, **options):
    layer = LuongAttention(score, **options)
    layer.build(*shapes)
    randomise(layer)
    return layer


def expected(layer, query, value, key=None, mask=None):
    """Return Luong's formula on the weights of the layer, in float64."""
    key = value if key is None else key
    scale = query.shape[-1] ** -0.5 if layer.score == "scaled" else 1.0
    if layer.score == "general":
        query = query.astype("float64") @ layer._query_dense.kernel.numpy()
    return reference.dot_product_attention(
        *(x[:, :, None] for x in (query, key, value)),
        scale=scale,
        mask=None if mask is None else mask[:, None],
    )


@pytest.mark.parametrize("score", ["dot", "general", "scaled"])
def test_is_the_formula(score):
    shapes = [*SHAPES[:1], (2, 5, 3), (2, 5, 6)]
    layer = built(score, *shapes)
    query, value, key = arrays = randoms(*shapes)
    rng = np.random.default_rng(0)
    mask = rng.random((2, 4, 5)) > 0.3
    mask[0, 1] = False
    for arguments, seen in (
        ({}, None),
        ({"attention_mask": mask}, mask),
        ({"use_causal_mask": True}, np.repeat(np.tri(4, 5, dtype=bool)[None], 2, 0)),
        ({"query_mask": mask[:, :, 0]}, np.repeat(mask[:, :, :1], 5, 2)),
        ({"key_mask": mask[:, 0]}, np.repeat(mask[:, :1], 4, 1)),
    ):
        output, scores = layer(query, value, key=key, return_attention_scores=True, **arguments)
        want = expected(layer, *arrays, mask=seen)
        assert_values(output, want.out[:, :, 0], "float32")
        assert_values(scores, want.weights[:, 0], "float32")


def test_general_has_one_kernel_and_takes_any_widths():
    layer = built("general", (2, 4, 6), (2, 5, 3), (2, 5, 7))
    assert [tuple(w.shape) for w in layer.weights] == [(6, 7)]
    query, value, key = randoms((2, 4, 6), (2, 5, 3), (2, 5, 7))
    assert layer(query, value, key=key).shape == (2, 4, 3)
    assert built("dot", *SHAPES).weights == []


def test_dot_is_keras_attention():
    arrays = randoms(*SHAPES)
    ours = LuongAttention()(*arrays, return_attention_scores=True)
    assert_close(ours, keras.layers.Attention()(arrays, return_attention_scores=True))


def test_the_state_of_an_lstm_asks_its_encoder():
    """As in the paper: encoder and decoder states, masks from the embedding."""
    tokens = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(10, 8, mask_zero=True)(tokens)
    lstm = keras.layers.LSTM(8, return_sequences=True, return_state=True)
    if not lstm.supports_masking:
        pytest.skip("this version of Keras ends masks at recurrent layers")
    encoded, *state = lstm(embedded)
    context, scores = LuongAttention("general")(state[0], encoded, return_attention_scores=True)
    model = keras.Model(tokens, [keras.layers.Dense(1)(context), scores])
    ids = np.array([[3, 4, 5, 0], [6, 0, 0, 0]])
    _, weights = model(ids)
    np.testing.assert_array_equal(np.asarray(weights) > 0, ids != 0)


def test_initializers_and_regularizers():
    layer = LuongAttention("general", kernel_regularizer="l2", kernel_initializer="ones")
    layer.build(*SHAPES)
    assert np.all(layer._query_dense.kernel.numpy() == 1)
    assert len(layer.losses) == 1


def test_an_unknown_score_is_refused():
    with pytest.raises(ValueError, match=r"`score` must .*Received: score='concat'"):
        LuongAttention("concat")
