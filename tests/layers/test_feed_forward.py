import numpy as np
import pytest

from heed.layers import FeedForward

X = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")


@pytest.mark.parametrize("use_bias", [False, True])
def test_it_follows_the_formula(use_bias):
    layer = FeedForward(16, use_bias=use_bias, bias_initializer="random_normal")
    result = layer(X)
    if use_bias:
        w1, b1, w2, b2 = layer.get_weights()
    else:
        (w1, w2), b1, b2 = layer.get_weights(), 0.0, 0.0
    np.testing.assert_allclose(result, np.maximum(X @ w1 + b1, 0) @ w2 + b2, atol=1e-5)


@pytest.mark.parametrize("use_bias", [False, True])
def test_a_gated_one_follows_the_formula(use_bias):
    """SwiGLU: what is activated is multiplied by another projection."""
    options = {"use_bias": use_bias, "bias_initializer": "random_normal"}
    layer = FeedForward(16, activation="silu", gated=True, **options)
    result = layer(X)

    def through(dense, x):
        return x @ np.asarray(dense.kernel) + (np.asarray(dense.bias) if use_bias else 0)

    hidden = through(layer.hidden_dense, X)
    inner = hidden / (1 + np.exp(-hidden)) * through(layer.up_dense, X)
    expected = through(layer.output_dense, inner)
    np.testing.assert_allclose(result, expected, atol=1e-5)
    twin = FeedForward.from_config(layer.get_config())
    twin.build(X.shape)
    twin.set_weights(layer.get_weights())
    np.testing.assert_array_equal(twin(X), result)


def test_positions_do_not_mix():
    layer = FeedForward(16)
    whole = np.asarray(layer(X))
    np.testing.assert_allclose(layer(X[:, 2:3]), whole[:, 2:3], atol=1e-6)


def test_the_two_kernels_start_unlike_each_other():
    layer = FeedForward(6, use_bias=False)
    layer.build((None, 5, 6))
    one, other = layer.get_weights()
    assert np.abs(one - other).max() > 0.1


def test_dropout_acts_in_training_only_and_follows_its_seed():
    layer, twin = FeedForward(64, dropout=0.5, seed=3), FeedForward(64, dropout=0.5, seed=3)
    twin.build(X.shape)
    layer.build(X.shape)
    twin.set_weights(layer.get_weights()) if len(twin.weights) == len(layer.weights) else None
    np.testing.assert_array_equal(layer(X), layer(X, training=False))
    dropped = np.asarray(layer(X, training=True))
    assert np.abs(dropped - np.asarray(layer(X))).max() > 1e-3
    np.testing.assert_array_equal(twin(X, training=True), dropped)
