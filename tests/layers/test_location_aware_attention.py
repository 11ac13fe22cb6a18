"""LocationAwareAttention: Chorowski's formula, with every mask, step after step."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.layers import AdditiveAttention, LocationAwareAttention
from heed.ops import Mask
from tests import reference
from tests.backend import FLOAT64, vjp
from tests.layers.stock import randomise, randoms
from tests.tolerances import assert_values

STATE, VALUE = (3, 4), (3, 6, 5)


def built(kernel_size=3, **options):
    layer = LocationAwareAttention(7, filters=2, kernel_size=kernel_size, **options)
    layer.build(STATE, VALUE)
    randomise(layer)
    return layer


def expected(layer, state, value, previous, mask):
    """Return the formula in float64, its convolution by plain loops."""
    weights = {w.path.split("/", 1)[1]: np.asarray(w, "float64") for w in layer.weights}
    B, S = value.shape[:2]
    kernel = weights["convolution/kernel"][:, 0]  # (kernel_size, filters)
    before = (len(kernel) - 1) // 2
    features = np.zeros((B, S, kernel.shape[1]))
    for b in range(B):
        for j in range(S):
            for place, row in enumerate(kernel):
                i = j + place - before
                if 0 <= i < S and mask[b, i]:
                    features[b, j] += row * previous[b, i]
    keys = value.astype("float64") @ weights["key/kernel"]
    result = reference.additive_attention(
        state[:, None].astype("float64") @ weights["query/kernel"],
        keys + features @ weights["location/kernel"],
        value,
        weights["score_vector"],
        bias=weights.get("bias"),
        mask=mask[:, None],
    )
    return result.out[:, 0], result.weights[:, 0]


@given(
    kernel_size=st.integers(1, 8),
    use_bias=st.booleans(),
    masked=st.sampled_from([None, "value_mask", "key_mask"]),
    seed=st.integers(0, 10_000),
)
def test_is_the_formula(kernel_size, use_bias, masked, seed):
    layer = built(kernel_size, use_bias=use_bias)
    state, value = randoms(STATE, VALUE, seed=seed)
    rng = np.random.default_rng(seed)
    previous = rng.random((3, 6)).astype("float32")
    mask, arguments = np.ones((3, 6), bool), {}
    if masked:
        mask = rng.random((3, 6)) > 0.4
        arguments = {masked: mask}
    context, weights = layer(state, value, previous_weights=previous, **arguments)
    want = expected(layer, state, value, previous, mask)
    assert_values(context, want[0], "float32")
    assert_values(weights, want[1], "float32")
    cache = layer.project_cache(value)
    again = layer(state, None, previous_weights=previous, cache=cache, **arguments)
    np.testing.assert_allclose(again[0], context, atol=1e-6)
    np.testing.assert_allclose(again[1], weights, atol=1e-6)
    np.testing.assert_array_equal(again[2]["key"], cache["key"])


def test_the_first_state_knows_no_weights():
    layer = built()
    state, value = randoms(STATE, VALUE)
    first = layer(state, value)
    zeros = layer(state, value, previous_weights=np.zeros((3, 6), "float32"))
    additive = AdditiveAttention(7)
    additive.build(STATE, VALUE)
    additive.set_weights(layer.get_weights()[: len(additive.weights)])
    for context, weights in (zeros, additive(state, value, return_attention_scores=True)):
        np.testing.assert_allclose(context, first[0], atol=1e-6)
        np.testing.assert_allclose(weights, first[1], atol=1e-6)


def test_rows_that_see_nothing_and_what_masks_hide():
    layer = built()
    state, value = randoms(STATE, VALUE)
    previous = np.full((3, 6), 0.2, "float32")
    mask = np.array([[1, 1, 1, 0, 0, 0], [0] * 6, [1] * 6], bool)
    context, weights = layer(state, value, previous_weights=previous, value_mask=mask)
    assert not np.any(np.asarray(context)[1])
    assert not np.any(np.asarray(weights)[1])
    assert not np.any(np.asarray(weights)[~mask])
    poisoned = [
        np.where(mask if x.ndim == 2 else mask[..., None], x, np.nan) for x in (previous, value)
    ]
    tensors = [keras.ops.convert_to_tensor(x, "float32") for x in poisoned]
    same, pull = vjp(
        lambda previous, value: layer(state, value, previous_weights=previous, value_mask=mask),
        *tensors,
        variables=layer.trainable_weights,
    )
    np.testing.assert_allclose(same[0], context, atol=1e-6)
    np.testing.assert_allclose(same[1], weights, atol=1e-6)
    for gradient in pull([2 * x for x in same]):
        assert np.all(np.isfinite(gradient))
    lengths = layer(
        state, value, previous_weights=previous * mask, attention_mask=Mask.lengths([3, 0, 6])
    )
    np.testing.assert_allclose(lengths[0], context, atol=1e-6)
    rows = layer(state, value, query_mask=np.array([True, False, True]))
    assert not np.any(np.asarray(rows[0])[1])


def test_gradients_flow_through_the_weights():
    """The result of the second state depends on the attention of the first."""
    layer = built(dtype="float64")
    state, value = (keras.ops.convert_to_tensor(x, "float64") for x in randoms(STATE, VALUE))

    def loss(x):
        _, weights = layer(x, value)
        return keras.ops.sum(layer(state, value, previous_weights=weights)[0] ** 2)

    (gradient,) = vjp(loss, state)[1]()
    step = 1e-4 * gradient / keras.ops.norm(gradient)
    slope = (loss(state + step) - loss(state - step)) / 2e-4
    assert slope > 1e-4
    rtol = 1e-4 if FLOAT64 == "float64" else 0.3  # the slope is a difference of rounded numbers
    np.testing.assert_allclose(slope, keras.ops.norm(gradient), rtol=rtol)


def test_it_moves_with_what_it_reads():
    """Shifted previous weights shift the features, so that one filter can say "go on to the next"."""
    layer = LocationAwareAttention(1, filters=1, kernel_size=3, use_bias=False)
    value = np.ones((1, 6, 2), "float32")
    layer.build((1, 2), value.shape)
    by_name = {w.path.split("/", 1)[1]: w for w in layer.weights}
    for name, number in {
        "query/kernel": 0,
        "key/kernel": 0,
        "score_vector": 30,
        "location/kernel": 1,
    }.items():
        by_name[name].assign(np.full(by_name[name].shape, number))
    by_name["convolution/kernel"].assign(np.reshape([1.0, 0.0, 0.0], (3, 1, 1)))
    weights = np.eye(6, dtype="float32")[:1]
    for place in range(1, 5):
        _, weights = layer(np.ones((1, 2), "float32"), value, previous_weights=weights)
        assert np.argmax(weights) == place


def test_errors():
    layer = built()
    state, value = randoms(STATE, VALUE)
    with pytest.raises(ValueError, match=r"`query` must have the shape \(B, Dq\)"):
        layer(value, value)
    with pytest.raises(ValueError, match=r"`previous_weights` must have .*\(3, 6\).*\(3, 5\)"):
        layer(state, value, previous_weights=np.ones((3, 5), "float32"))


def test_regularizers_and_constraints():
    layer = LocationAwareAttention(4, kernel_regularizer="l2", kernel_constraint="non_neg")
    layer.build(STATE, VALUE)
    assert len(layer.losses) == 5
    assert isinstance(layer._convolution.kernel.constraint, keras.constraints.NonNeg)
