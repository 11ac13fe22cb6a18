import keras
import numpy as np
import pytest

from heed.layers import LearnedPositions, RelativePositionBias, SinusoidalPositions
from tests.backend import is_dense, vjp

X = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")


def formula(positions, width, wavelength=10000.0):
    table = np.zeros((len(positions), width))
    angles = np.asarray(positions)[:, None] / wavelength ** (np.arange(0, width, 2) / width)
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    return table


@pytest.mark.parametrize("start", [0, 3, keras.ops.convert_to_tensor(3, "int32")])
def test_sinusoidal_positions_follow_the_formula(start):
    result = SinusoidalPositions(max_wavelength=100.0)(X, start_index=start)
    expected = X + formula(np.arange(6) + int(start), 8, 100.0)
    np.testing.assert_allclose(result, expected, atol=2e-6)


def test_sinusoidal_positions_are_rounded_last():
    layer = SinusoidalPositions(dtype="mixed_float16")
    far = np.asarray(layer(np.zeros((1, 2, 8), "float32"), start_index=5001))
    assert far.dtype == np.float16
    np.testing.assert_allclose(far[0], formula([5001, 5002], 8), atol=1e-3)


@pytest.mark.parametrize("start", [0, 3, keras.ops.convert_to_tensor(3, "int32")])
def test_learned_positions_are_rows_of_the_table(start):
    layer = LearnedPositions(9)
    result = layer(X, start_index=start)
    table = np.asarray(layer.embeddings)
    assert np.abs(table).max() > 0
    np.testing.assert_allclose(result, X + table[int(start) : int(start) + 6], rtol=1e-6)


def test_learned_positions_have_a_dense_gradient():
    layer = LearnedPositions(9)
    layer.build(X.shape)
    (result,) = vjp(lambda: layer(X, start_index=2), variables=[layer.embeddings])[1]()
    assert is_dense(result)
    np.testing.assert_array_equal(result[:, 0], [0, 0, 2, 2, 2, 2, 2, 2, 0])


@pytest.mark.parametrize("start", [4, -1])
def test_learned_positions_end(start):
    with pytest.raises(ValueError, match=rf"must end .*start_index={start}, max_length=9"):
        LearnedPositions(9)(X, start_index=start)


@pytest.mark.parametrize("make", [SinusoidalPositions, lambda: LearnedPositions(9)])
def test_a_sequence_in_parts_is_the_sequence(make):
    layer = make()
    whole = layer(X)
    parts = [layer(X[:, :4]), layer(X[:, 4:], start_index=4)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_relative_bias_depends_on_the_distance_only(bidirectional):
    layer = RelativePositionBias(2, num_buckets=8, max_distance=16, bidirectional=bidirectional)
    bias = np.asarray(layer(query_length=7))
    assert bias.shape == (1, 2, 7, 7)
    np.testing.assert_array_equal(bias[:, :, 1:, 1:], bias[:, :, :-1, :-1])
    later = bias[0, 0, 0]
    assert (len(set(later)) > 1) == bidirectional
    row = layer(query_length=1, key_length=7, start_index=keras.ops.convert_to_tensor(4, "int32"))
    np.testing.assert_array_equal(row, bias[:, :, 4:5])


def test_relative_bias_has_a_dense_gradient():
    layer = RelativePositionBias(2)
    layer.build()
    (result,) = vjp(lambda: layer(query_length=5), variables=[layer.embeddings])[1]()
    assert is_dense(result)
    np.testing.assert_array_equal(keras.ops.sum(result, axis=0), [25, 25])


def test_relative_bias_comes_back_from_its_config():
    layer = RelativePositionBias(2, num_buckets=6, max_distance=9, bidirectional=False)
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert twin.get_config() == layer.get_config()
