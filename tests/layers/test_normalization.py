"""heed's normalisation layers in the place of Keras': results, gradients, variables, configs."""

import keras
import numpy as np
import pytest

from heed.layers import MultiHeadAttention, TransformerEncoderLayer
from heed.layers.normalization import LayerNormalization, RMSNormalization
from tests.backend import on_tensorflow, tf, vjp
from tests.graphs import traced
from tests.layers.stock import assert_close, randomise, randoms

PAIRS = {
    "layer": (LayerNormalization, keras.layers.LayerNormalization, {"epsilon": 1e-5}),
    "layer, not centred": (
        LayerNormalization,
        keras.layers.LayerNormalization,
        {"center": False, "scale": False},
    ),
    "rms": (RMSNormalization, keras.layers.RMSNormalization, {"epsilon": 1e-5}),
}


def step(layer, x):
    y, pull = vjp(layer, x, variables=layer.trainable_variables)
    return [y, *pull(keras.ops.ones_like(y) * (np.arange(y.shape[-1]) / y.shape[-1]))]


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("name", PAIRS)
def test_results_and_gradients_are_those_of_keras(implementation, name, dtype):
    ours, theirs, options = PAIRS[name]
    ours, theirs = ours(**options, dtype=dtype), theirs(**options, dtype=dtype)
    ours.build((None, None, 16))
    theirs.build((None, None, 16))
    randomise(theirs)
    ours.set_weights(theirs.get_weights())
    (x,) = randoms((3, 5, 16))
    pairs = zip(
        *(step(layer, keras.ops.convert_to_tensor(x)) for layer in (ours, theirs)), strict=True
    )
    for found, expected in pairs:
        assert found.dtype == expected.dtype
        unit = max(1.0, float(np.abs(np.asarray(expected, np.float64)).max()))
        assert_close(found / unit, expected / unit, dtype.removeprefix("mixed_"))


@pytest.mark.parametrize("name", PAIRS)
def test_config_and_variables_are_those_of_keras(name):
    ours, theirs, options = PAIRS[name]
    ours, theirs = (kind(**options, name="x") for kind in (ours, theirs))
    for layer in (ours, theirs):
        layer.build((None, 4))
    assert ours.get_config() == theirs.get_config()
    again = type(ours).from_config(ours.get_config())
    assert again.get_config() == ours.get_config()
    assert [v.path for v in ours.variables] == [v.path for v in theirs.variables]


@pytest.mark.parametrize("kind", [LayerNormalization, RMSNormalization])
def test_the_last_axis_in_any_spelling_and_no_other(kind):
    (x,) = randoms((2, 3, 4))
    expected = kind()(x)
    for axis in ([-1], 2, [2]):  # Keras 3.16 saves the last
        config = {**kind().get_config(), "axis": axis}
        np.testing.assert_array_equal(kind.from_config(config)(x), expected)
    for axis in (1, -2, 3, [1, 2]):
        with pytest.raises(ValueError, match=r"`axis` must be .*axis="):
            kind(axis=axis)(x)


@on_tensorflow
def test_layers_use_them(implementation):
    x = np.zeros((2, 3, 8), "float32")
    for layer in (TransformerEncoderLayer(2, 8), MultiHeadAttention(2, 4, qk_norm=True)):
        inputs = (x,) if isinstance(layer, TransformerEncoderLayer) else (x, x)
        layer(*inputs)
        with traced() as graphs:
            run = tf.function(layer)
            run(*inputs)
        assert ("HeedNormalization" in graphs.native) == (implementation == "native")
