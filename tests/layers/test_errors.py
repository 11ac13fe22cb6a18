"""Bad input to the attention layers: the message names argument, requirement and what was received."""

import json
import warnings

import keras
import numpy as np
import pytest

from heed.layers import (
    AdditiveAttention,
    DotProductAttention,
    FeedForward,
    LearnedPositions,
    LocationAwareAttention,
    LuongAttention,
    MultiHeadAttention,
    RelativePositionBias,
    SinusoidalPositions,
    TokenEmbedding,
    TransformerEncoderLayer,
)
from heed.ops import Mask

INTEGERS = [0, -2, 1.5, "3", True]


@pytest.mark.parametrize("bad", INTEGERS)
@pytest.mark.parametrize(
    "name", ["num_heads", "key_dim", "value_dim", "num_key_value_heads", "sliding_window"]
)
def test_integers(name, bad):
    arguments = {"num_heads": 4, "key_dim": 4, name: bad}
    with pytest.raises(ValueError, match=f"`{name}` must be an integer >= 1.*Received: {name}="):
        MultiHeadAttention(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dropout": 1.0}, "`dropout` must be a finite number with 0 <= dropout < 1.*=1.0"),
        ({"dropout": -0.1}, "`dropout` must be a finite number with 0 <= dropout < 1.*=-0.1"),
        ({"soft_cap": 0}, "`soft_cap` must be a finite number > 0 or None.*=0"),
        ({"soft_cap": float("inf")}, "`soft_cap` must be a finite number > 0 or None.*=inf"),
        ({"soft_cap": float("nan")}, "`soft_cap` must be a finite number > 0 or None"),
        ({"output_shape": 8.0}, "`output_shape` must be an integer >= 1, a tuple.*=8.0"),
        ({"output_shape": (3, 0)}, "`output_shape` must be an integer >= 1"),
        ({"output_shape": ()}, "`output_shape` must be an integer >= 1"),
        ({"attention_axes": 1.0}, "`attention_axes` must be an integer, a tuple"),
        ({"attention_axes": ()}, "`attention_axes` must be an integer, a tuple"),
        ({"attention_axes": "12"}, "`attention_axes` must be an integer, a tuple"),
        ({"num_key_value_heads": 3}, "`num_key_value_heads` must divide `num_heads`"),
    ],
)
def test_constructor(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(4, 4, **arguments)


@pytest.mark.parametrize("make", [lambda **o: MultiHeadAttention(2, 4, **o), LuongAttention])
def test_an_unknown_option(make):
    with pytest.raises((ValueError, TypeError), match=r"[Uu]nrecognized keyword.*heads_of_state"):
        make(heads_of_state=3)


@pytest.mark.parametrize(
    ("cls", "options", "bad"),
    [
        (AdditiveAttention, {"units": 3}, {"units": INTEGERS, "dropout": [2]}),
        (LuongAttention, {}, {"dropout": [2]}),
        (DotProductAttention, {}, {"dropout": [2], "scale": ["big", float("-inf"), True]}),
        (LocationAwareAttention, {"units": 4}, {"filters": [0], "kernel_size": [0]}),
        (FeedForward, {"hidden_width": 4}, {"hidden_width": [0], "dropout": [1.0]}),
        (TokenEmbedding, {"vocabulary_size": 3, "width": 2}, {"width": INTEGERS}),
        (TokenEmbedding, {"vocabulary_size": 3, "width": 2}, {"vocabulary_size": INTEGERS}),
        (SinusoidalPositions, {}, {"max_wavelength": [0]}),
        (LearnedPositions, {"max_length": 9}, {"max_length": [0]}),
        (RelativePositionBias, {"num_heads": 2}, {"num_heads": [0], "num_buckets": [1.5]}),
        (RelativePositionBias, {"num_heads": 2}, {"max_distance": [-3]}),
    ],
)
def test_constructors_of_the_others(cls, options, bad):
    for name, values in bad.items():
        for value in values:
            with pytest.raises(ValueError, match=rf"`{name}` must be .*Received: {name}="):
                cls(**{**options, name: value})


MULTI = [
    ([(2, 5, 8), (2, 7, 8), (2, 6, 8)], "`value` and `key` except the last must be equal"),
    ([(2, 5, 8), (2, 7, 8), (2,)], "`value` and `key` except the last must be equal"),
    ([(2, 5, 8), (3, 7, 8)], "`query` and `value` must have the same batch size"),
    ([(2, 8), (2, 7, 8)], "three dimensions"),
    ([(2, 5, 8), (2, 3, 7, 8)], "`query` and `value` must have the same rank"),
    ([(2, 5, None), (2, 7, 8)], "The last dimension of `query` must be known"),
    ([(2, 5, 8), (2, 7, None)], "The last dimension of `value` must be known"),
]


@pytest.mark.parametrize(("shapes", "message"), MULTI)
def test_shapes_are_checked_while_building(shapes, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(2, 4).compute_output_shape(*shapes)
    with pytest.raises(ValueError, match=f"{message}.*Received"):
        MultiHeadAttention(2, 4).build(*shapes)
    if len(shapes[-1]) > 1:
        inputs = [keras.KerasTensor(shape) for shape in shapes]
        with pytest.raises(ValueError, match=message):
            MultiHeadAttention(2, 4)(*inputs)


def test_axes():
    query, value = (2, 3, 5, 8), (2, 4, 5, 8)
    with pytest.raises(ValueError, match="axis that is not attended over"):
        MultiHeadAttention(2, 4, attention_axes=2).build(query, value)
    for axes in (0, 3, -1, (1, 1), 7):
        with pytest.raises(ValueError, match="`attention_axes` must name, once each"):
            MultiHeadAttention(2, 4, attention_axes=axes).build(query, value)
    x = np.ones((2, 3, 4, 8))
    for arguments in ({"use_causal_mask": True}, {}):
        window = None if arguments else 2
        layer = MultiHeadAttention(2, 4, sliding_window=window)
        with pytest.raises(ValueError, match="need an order of positions"):
            layer(x, x, **arguments)
    with pytest.raises(ValueError, match="`rotary_positions` needs inputs"):
        MultiHeadAttention(2, 4)(x, x, rotary_positions=np.arange(3))


@pytest.mark.parametrize("symbolic", [True, False])
@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("query_mask", (2, 7), "`query_mask` must hold one value per position.*query_mask.shape="),
        ("value_mask", (2, 5), "`value_mask` must hold one value per position.*value_mask.shape="),
        ("key_mask", (3, 7), "`key_mask` must hold one value per position.*key_mask.shape="),
        ("attention_mask", (2, 7, 5), "`attention_mask` must be broadcastable.*mask.shape="),
        ("attention_mask", (7,), "`attention_mask` must be broadcastable.*mask.shape="),
        ("attention_mask", (2, 3, 5, 7), "`attention_mask` must be broadcastable.*mask.shape="),
        ("attention_mask", (1, 2, 2, 5, 7), "`attention_mask` must be broadcastable"),
    ],
)
def test_masks_of_another_shape(name, shape, message, symbolic):
    layers = [MultiHeadAttention(2, 4), AdditiveAttention(3), DotProductAttention()]
    mask = np.ones(shape, bool)
    arrays = [np.ones((2, n, 8), "float32") for n in (5, 7, 7)]
    if symbolic:
        mask = keras.KerasTensor(shape, "bool")
        arrays = [keras.KerasTensor(x.shape) for x in arrays]
    for layer in layers:
        with pytest.raises(ValueError, match=message):
            layer(*arrays, **{name: mask})


def test_masks_of_another_dtype():
    x = np.ones((2, 5, 8), "float32")
    with pytest.raises(TypeError, match=r"`attention_mask` must .* booleans"):
        MultiHeadAttention(2, 4)(x, x, attention_mask="causal")


def test_position_bias_of_another_shape():
    x = np.ones((2, 5, 8), "float32")
    with pytest.raises(ValueError, match="`position_bias` must be broadcastable"):
        MultiHeadAttention(2, 4)(x, x, position_bias=np.ones((3, 5, 5)))


def test_rotary_positions():
    query, value = np.ones((2, 5, 8), "float32"), np.ones((2, 7, 8), "float32")
    layer = MultiHeadAttention(2, 4)
    with pytest.raises(ValueError, match=r"`rotary_key_positions` must have one.*=\(5,\)"):
        layer(query, value, rotary_positions=np.arange(5))
    with pytest.raises(ValueError, match=r"`rotary_positions` must have one position.*=\(6,\)"):
        layer(query, query, rotary_positions=np.arange(6))
    with pytest.raises(ValueError, match=r"`key_dim` must be .*key_dim=3"):
        MultiHeadAttention(2, 3)(query, query, rotary_positions=np.arange(5))


@pytest.mark.parametrize("cls", [DotProductAttention, LuongAttention])
def test_dot_products_need_equal_widths(cls):
    with pytest.raises(ValueError, match=r"as many features.*6\), .*8\)"):
        cls()(np.ones((2, 5, 6)), np.ones((2, 7, 8)))
    cls()(np.ones((2, 5, 6)), np.ones((2, 7, 8)), key=np.ones((2, 7, 6)))


@pytest.mark.parametrize("layer", [DotProductAttention(), LuongAttention(), AdditiveAttention(3)])
def test_layers_with_one_head(layer):
    x, state = np.ones((2, 5, 8)), np.ones((2, 8))
    with pytest.raises(ValueError, match="`use_causal_mask` needs a sequence"):
        layer(state, x, use_causal_mask=True)
    with pytest.raises(ValueError, match=r"`query` must have the shape \(B, T, D\), or \(B, D\)"):
        type(layer).from_config(layer.get_config())(x[None], x[None])
    with pytest.raises(ValueError, match=r"`query` and `value` .* same batch size"):
        type(layer).from_config(layer.get_config())(x[:1], x)
    with pytest.raises(ValueError, match="`attention_mask` must be broadcastable"):
        layer(state, x, attention_mask=np.ones((2, 1, 5), bool))


@pytest.mark.parametrize(
    "layer", [MultiHeadAttention(2, 4), AdditiveAttention(3), LuongAttention("general")]
)
def test_a_later_call_with_another_width_is_refused(layer):
    x, other = np.ones((2, 5, 8), "float32"), np.ones((2, 5, 6), "float32")
    layer(x, x)
    for operands, name in (((other, x, x), "query"), ((x, x, other), "key")):
        query, value, key = operands
        with pytest.raises(ValueError, match=rf"`{name}` must have 8 features.*5, 6\)"):
            layer(query, value, key=key)


@pytest.mark.parametrize(
    ("layer", "letters"),
    [
        (MultiHeadAttention(2, 4), r"\(B, N, T, S\) = \(2, 2, 5, 7\)"),
        (AdditiveAttention(3), r"\(B, T, S\) = \(2, 5, 7\)"),
        (DotProductAttention(), r"\(B, T, S\) = \(2, 5, 7\)"),
        (LuongAttention(), r"\(B, T, S\) = \(2, 5, 7\)"),
    ],
)
@pytest.mark.parametrize("shape", [(5, 6), (2, 1, 5, 6)])
def test_a_mask_object_that_does_not_fit_is_the_attention_mask(layer, letters, shape):
    query, value = np.ones((2, 5, 8), "float32"), np.ones((2, 7, 8), "float32")
    with pytest.raises(ValueError, match=f"`attention_mask` must broadcast to {letters}"):
        layer(query, value, attention_mask=Mask.dense(np.ones(shape, bool)))
    layer(query, value, attention_mask=Mask.dense(np.ones((2, 1, 5, 7), bool)))


def test_numbers_of_numpy_are_numbers():
    def to_numpy(value):
        if isinstance(value, tuple):
            return tuple(map(to_numpy, value))
        return np.int64(value) if isinstance(value, int) else np.float32(value)

    heads = {"num_key_value_heads": 2, "sliding_window": 3, "soft_cap": 0.5, "seed": 3}
    own = {"value_dim": 3, "output_shape": 3, "attention_axes": (1,), "dropout": 0.5}
    sizes = {"feed_forward_width": 3, "key_dim": 3, "norm_epsilon": 0.25, "dropout": 0.5}
    for cls, options in (
        (MultiHeadAttention, {"num_heads": 4, "key_dim": 6, **heads, **own}),
        (DotProductAttention, {"scale": 0.5, "dropout": 0.5, "soft_cap": 0.5, "seed": 3}),
        (AdditiveAttention, {"units": 3, "dropout": 0.5, "seed": 3}),
        (TransformerEncoderLayer, {"num_heads": 2, **heads, **sizes}),
        (FeedForward, {"hidden_width": 3, "dropout": 0.5, "seed": 3}),
        (SinusoidalPositions, {"max_wavelength": 100.0}),
        (LearnedPositions, {"max_length": 9}),
    ):
        given = {name: to_numpy(value) for name, value in options.items()}
        found, expected = (cls(**x, name="x").get_config() for x in (given, options))
        assert json.dumps(found) == json.dumps(expected)
    x, whole = np.ones((2, 5, 8), "float32"), MultiHeadAttention(2, 4)
    _, scores = whole(x, x, return_attention_scores=[np.int64(1)])
    assert scores.shape == (2, 1, 5, 5)


@pytest.mark.parametrize("bad", [True, "3", 1.5, np.bool_(True)])
def test_a_seed_is_an_integer(bad):
    for make in (lambda **o: MultiHeadAttention(2, 4, **o), LuongAttention):
        with pytest.raises(ValueError, match=r"`seed` must .*Received: seed="):
            make(seed=bad)
        assert make(seed=-3).seed == -3


@pytest.mark.parametrize("layer", [AdditiveAttention(3), LuongAttention("general")])
def test_keys_and_values_by_position(layer):
    """(query, keys, values), as tutorials have it, swaps them."""
    query, keys, values = (
        np.ones((2, n, width), "float32") for n, width in ((5, 8), (7, 6), (7, 4))
    )
    named = r"\(query, value, key=None\).*value.shape=\(2, 7, 6\), key.shape=\(2, 7, 4\)"
    with pytest.warns(UserWarning, match=named) as caught:
        layer(query, keys, values)
    assert caught[0].filename == __file__
    fresh = type(layer).from_config(layer.get_config())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fresh(query, values, key=keys).shape == (2, 5, 4)
    with pytest.raises(ValueError, match=r"`key` must have 6 features.*key.shape=\(2, 7, 4\)"):
        fresh(query, keys, key=values)


@pytest.mark.parametrize("layer", [AdditiveAttention(3), LuongAttention(), DotProductAttention()])
@pytest.mark.parametrize("kind", [list, tuple])
def test_arguments_as_a_list(layer, kind):
    x = np.ones((2, 5, 8), "float32")
    with pytest.raises(TypeError, match=r"key=None\), one by one.*query="):
        layer(kind([x, x]))
    with pytest.raises(TypeError, match="one by one"):
        layer(kind([keras.Input((5, 8)), keras.Input((5, 8))]))


@pytest.mark.parametrize("cls", [DotProductAttention, LuongAttention])
def test_a_key_of_another_width_names_the_order(cls):
    query, keys, values = (
        np.ones((2, n, width), "float32") for n, width in ((5, 8), (7, 8), (7, 4))
    )
    with (
        pytest.warns(UserWarning, match="given by position"),
        pytest.raises(ValueError, match=r"arguments are \(query, value, key=None\)"),
    ):
        cls()(query, keys, values)
