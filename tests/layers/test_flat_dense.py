"""Dense layers as one product of two matrices: Keras' own results, and no batched product."""

import keras
import numpy as np
import pytest

from heed.layers import FeedForward, MultiHeadAttention
from heed.layers.flat_dense import FlatDense, FlatEinsumDense
from heed.models import TransformerConfig, TransformerDecoder
from tests.backend import on_tensorflow, tf, vjp
from tests.layers.stock import TOLERANCE, assert_close, randomise, randoms

LAYERS = {
    "dense": (FlatDense, keras.layers.Dense, {"units": 6, "activation": "relu"}, (3, 5, 8)),
    "dense of rows": (FlatDense, keras.layers.Dense, {"units": 6, "use_bias": False}, (5, 8)),
    "to heads": (
        FlatEinsumDense,
        keras.layers.EinsumDense,
        {"equation": "abc,cde->abde", "output_shape": (None, 2, 3), "bias_axes": "de"},
        (3, 5, 8),
    ),
    "from heads": (
        FlatEinsumDense,
        keras.layers.EinsumDense,
        {"equation": "abcd,cde->abe", "output_shape": (None, 7), "bias_axes": "e"},
        (3, 5, 2, 4),
    ),
    "softmax over the last axis": (
        FlatEinsumDense,
        keras.layers.EinsumDense,
        {"equation": "abc,cde->abde", "output_shape": (None, 2, 3), "activation": "softmax"},
        (3, 5, 8),
    ),
}


def step(layer, x):
    """Return output and gradients of a weighted sum of it."""
    output, pull = vjp(layer, x, variables=layer.trainable_variables)
    return [output, *pull(np.broadcast_to(np.arange(output.shape[-1]) + 1.0, output.shape))]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", LAYERS)
def test_results_and_gradients_are_those_of_keras(name, dtype):
    ours, theirs, options, shape = LAYERS[name]
    policy = dtype if dtype == "float32" else f"mixed_{dtype}"
    ours, theirs = ours(**options, dtype=policy), theirs(**options, dtype=policy)
    ours.build(shape)
    theirs.build(shape)
    randomise(theirs)
    ours.set_weights(theirs.get_weights())
    (x,) = randoms(shape)
    for found, expected in zip(
        *(step(layer, keras.ops.convert_to_tensor(x)) for layer in (ours, theirs)), strict=True
    ):
        assert found.dtype == expected.dtype
        scale = max(1.0, float(np.abs(np.asarray(expected, np.float64)).max()))
        assert_close(found / scale, expected / scale, dtype)


def products(function, *specs):
    graph = tf.function(function, autograph=False).get_concrete_function(*specs).graph
    return sorted(op.type for op in graph.get_operations() if "MatMul" in op.type)


@on_tensorflow
@pytest.mark.parametrize("shape", [(3, 5, 8), (None, 5, 8), (None, None, 8)])
@pytest.mark.parametrize("part", ["feed-forward", "attention", "decoder"])
def test_every_product_is_one_of_two_matrices(part, shape):
    """Forward one for each projection, backward two."""
    if part == "decoder":
        config = TransformerConfig(20, 9, width=8, num_heads=2, tie_embeddings=False)
        layer, count = TransformerDecoder(config).output_layer, 1
        layer.build((None, None, 8))
    elif part == "attention":
        layer, count = MultiHeadAttention(2, 4, num_key_value_heads=1), 4
        layer.build(shape, shape)
    else:
        layer, count = FeedForward(16), 2
        layer.build(shape)

    def train(x):
        call = (lambda x: layer(x, x)) if part == "attention" else layer
        return vjp(call, x, variables=layer.trainable_variables)[1]()

    found = products(train, tf.TensorSpec(shape, tf.float32))
    assert found == ["MatMul"] * 3 * count


@on_tensorflow
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("axis", [0, 1])
def test_nothing_in_nothing_out(name, axis):
    ours, theirs, options, shape = LAYERS[name]
    layer = ours(**options)
    layer.build(shape)
    if axis == 1 and len(shape) == 2:
        pytest.skip("the features cannot be none")
    empty = [*shape]
    empty[axis] = 0
    expected = tuple(theirs(**options)(np.zeros(empty, "float32")).shape)
    assert tuple(layer(np.zeros(empty, "float32")).shape) == expected
    unknown = tf.TensorSpec([None if i < len(shape) - 1 else n for i, n in enumerate(shape)])
    assert tuple(tf.function(layer, [unknown])(np.zeros(empty, "float32")).shape) == expected


@pytest.mark.parametrize(
    ("equation", "options", "name"),
    [
        ("abc,dce->abde", {}, "equation"),
        ("abc,cde->adbe", {}, "equation"),
        ("abc,bd->acd", {}, "equation"),
        ("abcd,dce->abe", {}, "equation"),
        ("abc,cde->abde", {"bias_axes": "e"}, "bias_axes"),
    ],
)
def test_other_equations_are_refused(equation, options, name):
    with pytest.raises(ValueError, match=rf"`{name}` must .* Received: {name}="):
        FlatEinsumDense(equation, (None, 2, 3), **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense", "to heads"])
def test_config_and_quantisation_are_those_of_keras(name):
    ours, theirs, options, shape = LAYERS[name]
    ours, theirs = ours(**options, name="x"), theirs(**options, name="x")
    assert ours.get_config() == theirs.get_config()
    assert type(ours).from_config(ours.get_config()).get_config() == ours.get_config()
    (x,) = randoms(shape)
    for layer in (ours, theirs):
        layer.build(shape)
    randomise(theirs)
    ours.set_weights(theirs.get_weights())
    for layer in (ours, theirs):
        layer.quantize("int8")
    np.testing.assert_array_equal(ours(x), theirs(x))
