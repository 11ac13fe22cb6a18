"""Masks in which 1 means "ignore", or that are added to scores, are refused by every layer, as by the ops."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import heed
from heed import Mask
from heed.layers import (
    AdditiveAttention,
    DotProductAttention,
    LocationAwareAttention,
    LuongAttention,
    MultiHeadAttention,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from tests.backend import on_tensorflow, tf

X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
LOOK_AHEAD = 1 - np.tril(np.ones((5, 5), "int32"))
REAL = np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]])

# Each layer with its call, and which of its arguments are masks over scores and which of positions.
OF_ATTENTION = (("attention_mask",), ("query_mask", "value_mask", "key_mask"))
LAYERS: list[tuple[str, Callable[[], Any], tuple[Any, ...], tuple[Any, ...]]] = [
    ("multi-head", lambda: MultiHeadAttention(2, 4), (X, X, X), OF_ATTENTION),
    (
        "grouped",
        lambda: MultiHeadAttention(2, 4, num_key_value_heads=1),
        (X, X, X),
        OF_ATTENTION,
    ),
    ("dot-product", DotProductAttention, (X, X, X), OF_ATTENTION),
    ("additive", lambda: AdditiveAttention(4), (X, X, X), OF_ATTENTION),
    ("luong", LuongAttention, (X, X, X), OF_ATTENTION),
    (
        "location-aware",
        lambda: LocationAwareAttention(4, filters=2, kernel_size=3),
        (X[:, 0], X, X),
        ((), ("value_mask", "key_mask")),
    ),
    (
        "encoder",
        lambda: TransformerEncoderLayer(2, 8),
        (X,),
        (("attention_mask",), ("mask",)),
    ),
    (
        "decoder",
        lambda: TransformerDecoderLayer(2, 8),
        (X, X),
        (("attention_mask", "cross_attention_mask"), ("inputs_mask", "encoded_mask")),
    ),
]
each_layer = pytest.mark.parametrize(
    ("make", "inputs", "names"), [case[1:] for case in LAYERS], ids=[case[0] for case in LAYERS]
)


@each_layer
def test_masks_of_the_other_convention(make: Any, inputs: Any, names: Any) -> None:
    layer, symbolic = make(), [keras.KerasTensor(x.shape) for x in inputs]
    layer(*inputs)
    over_scores, of_positions = names
    for name in over_scores:
        remedy = rf"`{name}` must be a `Mask` or hold booleans.*`Mask.blocked`.*`position_bias`"
        for mask in (LOOK_AHEAD.astype("float32"), -1e9 * LOOK_AHEAD, LOOK_AHEAD * 0.5):
            with pytest.raises(TypeError, match=rf"{remedy}.*Received: {name}.dtype=float"):
                layer(*inputs, **{name: mask})
        with pytest.raises(TypeError, match=remedy):
            layer(*symbolic, **{name: keras.KerasTensor((5, 5), "float32")})
        inverted = rf"`{name}` looks like a mask in which 1 means ignore.*`Mask.blocked\({name}\)`"
        for mask in (LOOK_AHEAD, np.maximum(LOOK_AHEAD, 1 - REAL[:, None])):
            with pytest.raises(ValueError, match=inverted):
                layer(*inputs, **{name: mask})
        with pytest.raises(ValueError, match=rf"`{name}` must hold .* 0 and 1.*with -1000000000"):
            layer(*inputs, **{name: -1_000_000_000 * LOOK_AHEAD})
    for name in of_positions:
        mask = REAL[:, 0] if name == "query_mask" and inputs[0].ndim == 2 else REAL
        remedy = rf"`{name}` must hold booleans.*`{name} == 0`"
        with pytest.raises(TypeError, match=rf"{remedy}.*Received: {name}.dtype=float"):
            layer(*inputs, **{name: mask * 1.0})
        with pytest.raises(TypeError, match=remedy):
            layer(*symbolic, **{name: keras.KerasTensor(mask.shape, "float32")})
        with pytest.raises(ValueError, match=rf"`{name}` must hold .* 0 and 1.*with 2"):
            layer(*inputs, **{name: 2 * mask})


@each_layer
def test_integers_of_the_right_convention(make: Any, inputs: Any, names: Any) -> None:
    layer = make()
    over_scores, of_positions = names
    masks = [(name, 1 - LOOK_AHEAD) for name in over_scores]
    for name, mask in [*masks, *((name, REAL) for name in of_positions)]:
        given, expected = (
            keras.tree.flatten(layer(*inputs, **{name: x})) for x in (mask, mask.astype(bool))
        )
        for one, other in zip(given, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@on_tensorflow
def test_integers_in_a_graph() -> None:
    """Their values are known when it runs; in masks of positions a square is no look-ahead mask."""
    layer = MultiHeadAttention(2, 4)
    square = X[[0, 1, 0, 1, 0]]
    spec = tf.TensorSpec((None, None), "int32")
    over_scores = tf.function(lambda m: layer(X, X, attention_mask=m), input_signature=[spec])
    of_positions = tf.function(lambda m: layer(square, square, key_mask=m), input_signature=[spec])
    expected = layer(X, X, use_causal_mask=True)
    np.testing.assert_allclose(over_scores(1 - LOOK_AHEAD), expected, atol=1e-6)
    assert np.isfinite(of_positions(LOOK_AHEAD)).all()
    for run, mask, message in (
        (over_scores, LOOK_AHEAD, "`attention_mask` looks like a mask in which 1 means ignore"),
        (over_scores, -3 * LOOK_AHEAD, "`attention_mask` must hold booleans or the integers 0"),
        (of_positions, 2 * LOOK_AHEAD, "`key_mask` must hold booleans or the integers 0 and 1"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            run(mask.astype("int32"))


class Carry(keras.layers.Layer):
    """Leaves a mask of a dtype on what it returns, as layers of users may."""

    def call(self, x: Any) -> Any:
        return x * 1

    def compute_mask(self, x: Any, mask: Any = None) -> Any:
        return keras.ops.convert_to_tensor(REAL.astype(self.name))


@each_layer
def test_masks_that_tensors_carry_may_be_floats(make: Any, inputs: Any, names: Any) -> None:
    layer = make()
    one, other = (
        keras.tree.flatten(layer(*(x if x.ndim == 2 else carry(x) for x in inputs)))[0]
        for carry in (Carry(name="float32"), Carry(name="bool"))
    )
    np.testing.assert_array_equal(one, other)
    with np.testing.assert_raises(AssertionError):  # the mask counts
        np.testing.assert_array_equal(one, keras.tree.flatten(layer(*inputs))[0])


def test_accelerated_layers_of_keras_take_what_keras_takes() -> None:
    layer = keras.layers.MultiHeadAttention(2, 4)
    masks = [LOOK_AHEAD, LOOK_AHEAD * 1.0, 2 - LOOK_AHEAD]
    alive = np.s_[:, :4]  # Keras has the mean for a row that sees nothing, heed 0
    expected = [layer(X, X, attention_mask=mask) for mask in masks]
    with heed.accelerate():
        for mask, stock in zip(masks, expected, strict=True):
            fast = layer(X, X, attention_mask=mask)
            np.testing.assert_allclose(fast[alive], stock[alive], atol=1e-5)
        attention = keras.layers.Attention()
        masked = attention([X, X], mask=[REAL * 1.0, REAL * 1.0])
    np.testing.assert_allclose(attention([X, X], mask=[REAL, REAL]), masked, atol=1e-5)


def test_padding_masks_of_tutorials_name_the_remedy() -> None:
    x = np.zeros((2, 6, 8), "float32")
    remedy = r"`attention_mask` must be broadcastable.*`key_mask`.*`Mask.blocked`.*shape=\(2, "
    four, two = (1 - REAL)[:, None, None], REAL
    for layer in (DotProductAttention(), AdditiveAttention(4), LuongAttention()):
        with pytest.raises(ValueError, match=remedy):
            layer(x, X, attention_mask=four)
        with pytest.raises(ValueError, match=remedy):
            layer(x, X, attention_mask=two)
        layer(x, X, attention_mask=Mask.blocked(four))
    layer = MultiHeadAttention(2, 4)
    with pytest.raises(ValueError, match=remedy):
        layer(x, X, attention_mask=two)
    layer(x, X, attention_mask=Mask.blocked(four))


def test_the_order_of_tutorials_names_output_shape() -> None:
    with pytest.raises(ValueError, match=r"`output_shape=512`\. Received: dropout=512"):
        MultiHeadAttention(8, 64, 64, 512)
