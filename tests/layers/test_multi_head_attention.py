"""MultiHeadAttention: equal to stock Keras wherever that is right, and what it adds."""

import functools

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.layers import MultiHeadAttention
from heed.ops import Mask, alibi_slopes
from tests import reference, tolerances
from tests.backend import FLOAT64, WrongValue, vjp
from tests.layers.stock import (
    HAS_WINDOW,
    TOLERANCE,
    assert_close,
    pair,
    randomise,
    randoms,
    visible_somewhere,
)


def call(layer, arrays, **arguments):
    return layer(*arrays, return_attention_scores=True, **arguments)


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        ([(2, 5, 8), (2, 5, 8)], {}),
        ([(2, 5, 8), (2, 7, 8)], {}),
        ([(2, 5, 8), (2, 7, 6), (2, 7, 3)], {}),
        ([(2, 5, 8), (2, 7, 6)], {"value_dim": 3}),
        ([(2, 5, 8), (2, 7, 8)], {"use_bias": False}),
        ([(2, 5, 8), (2, 7, 8)], {"output_shape": 5}),
        ([(2, 5, 8), (2, 7, 8)], {"output_shape": (3, 4)}),
        ([(2, 5, 8), (2, 7, 8)], {"num_heads": 1, "key_dim": 8}),
        ([(2, 5, 8), (2, 7, 8)], {"num_heads": 4, "num_key_value_heads": 2}),
        ([(2, 5, 8), (2, 7, 8)], {"num_heads": 4, "num_key_value_heads": 1}),
        ([(2, 5, 8), (2, 5, 8)], {"sliding_window": 2}),
        ([(1, 1, 8), (1, 9, 8)], {}),
    ],
)
def test_agrees_with_stock(shapes, options):
    ours, stock = pair(shapes, **options)
    arrays = randoms(*shapes)
    for causal in (False, True):
        expected = call(stock, arrays, use_causal_mask=causal)
        assert_close(call(ours, arrays, use_causal_mask=causal), expected)
        assert_close(ours(*arrays, use_causal_mask=causal), expected[0])


@pytest.mark.parametrize(
    ("axes", "query", "value"),
    [
        (2, (2, 3, 4, 8), (2, 3, 2, 8)),
        (-2, (2, 3, 4, 8), (2, 3, 2, 8)),
        (1, (2, 5, 3, 8), (2, 6, 3, 8)),
        ((1, 2), (2, 3, 4, 8), (2, 5, 2, 8)),
        (None, (2, 3, 4, 8), (2, 5, 2, 8)),
        ((2, 3), (2, 5, 3, 4, 8), (2, 5, 3, 2, 8)),
        ((1, 3), (2, 5, 3, 4, 8), (2, 2, 3, 6, 8)),
        (None, (2, 4, 2, 3, 8), (2, 1, 1, 5, 8)),
    ],
)
def test_attention_axes_agree_with_stock(axes, query, value):
    ours, stock = pair([query, value], attention_axes=axes)
    arrays = randoms(query, value)
    try:
        expected = call(stock, arrays)
    except WrongValue:
        pytest.skip("this version of Keras does not know negative axes")
    assert_close(call(ours, arrays), expected)
    # A mask with and without the dimension of the heads, and with ones in it.
    scores = expected[1].shape
    rng = np.random.default_rng(1)
    count = (ours.attention_axes and len(ours.attention_axes)) or len(query) - 2
    heads = len(scores) - 2 * count - 1
    full = rng.random(scores) > 0.3
    full[(..., *[0] * count)] = True
    for mask in (full, full.any(heads), full.any(heads, keepdims=True), full[:1]):
        expected = call(stock, arrays, attention_mask=mask)
        assert_close(call(ours, arrays, attention_mask=mask), expected)


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint8"])
@pytest.mark.parametrize(
    "shape", [(5, 7), (1, 7), (3, 5, 7), (1, 5, 7), (3, 1, 7), (3, 1, 5, 7), (3, 2, 5, 7)]
)
def test_masks_of_every_rank(shape, dtype):
    shapes = [(3, 5, 8), (3, 7, 8)]
    ours, stock = pair(shapes)
    arrays = randoms(*shapes)
    mask = visible_somewhere(np.random.default_rng(2).random(shape) > 0.5).astype(dtype)
    expected = call(stock, arrays, attention_mask=mask)
    assert_close(call(ours, arrays, attention_mask=mask), expected)


@pytest.mark.filterwarnings("ignore:`attention_mask` of shape")  # B equals T
@given(
    batch=st.integers(1, 3),
    queries=st.integers(1, 9),
    keys=st.integers(1, 9),
    groups=st.sampled_from([(1, 1), (2, 2), (4, 2), (6, 3), (3, 1)]),
    window=st.none() | st.integers(1, 9) if HAS_WINDOW else st.none(),
    causal=st.booleans(),
    rank=st.sampled_from([0, 2, 3, 4]),
    seed=st.integers(0, 10_000),
)
def test_any_mask_agrees_with_stock(batch, queries, keys, groups, window, causal, rank, seed):
    shapes = [(batch, queries, 8), (batch, keys, 8)]
    heads, kv_heads = groups
    ours, stock = pair(shapes, num_heads=heads, num_key_value_heads=kv_heads, sliding_window=window)
    arrays = randoms(*shapes, seed=seed)
    arguments = {"use_causal_mask": causal}
    seen = np.ones((batch, heads, queries, keys), bool)
    distance = np.arange(queries)[:, None] - np.arange(keys)
    if causal:
        seen &= distance >= 0
    if window is not None:
        seen &= np.abs(distance) < window
    if rank:
        shape = seen.shape[-rank:] if rank != 3 else (batch, queries, keys)
        mask = np.random.default_rng(seed).random(shape) > 0.4
        arguments["attention_mask"] = mask
        seen &= mask[:, None] if rank == 3 else mask
    output, scores = call(ours, arrays, **arguments)
    # Rows that see nothing are where stock Keras is wrong.
    expected = call(stock, arrays, **arguments)
    alive = seen.any(-1)
    np.testing.assert_allclose(
        np.where(alive[..., None], scores, 0), np.where(alive[..., None], expected[1], 0), atol=3e-6
    )
    assert np.all(np.asarray(scores)[~seen] == 0)
    rows = alive.all(1)
    np.testing.assert_allclose(
        np.asarray(output)[rows], np.asarray(expected[0])[rows], atol=1e-5, rtol=1e-5
    )
    np.testing.assert_array_equal(ours(*arrays, **arguments), output)


def test_implicit_masks_agree_with_stock():
    ids = np.array([[1, 2, 3, 0, 0], [3, 3, 1, 1, 2], [1, 0, 0, 0, 0]])
    others = np.array([[5, 4, 0], [3, 0, 0], [2, 1, 1]])
    query = keras.layers.Embedding(4, 8, mask_zero=True)(ids)
    value = keras.layers.Embedding(6, 8, mask_zero=True)(others)
    ours, stock = pair([(3, 5, 8), (3, 3, 8)])
    for causal in (False, True):
        output, scores = ours(query, value, use_causal_mask=causal, return_attention_scores=True)
        mask = np.asarray(query._keras_mask)
        np.testing.assert_array_equal(output._keras_mask, mask)
        explicit = (ids != 0)[:, :, None] & (others != 0)[:, None]
        arrays = [np.asarray(query), np.asarray(value)]
        again = call(ours, arrays, attention_mask=explicit, use_causal_mask=causal)
        assert_close((output, scores), again)
        # Keras' layer takes the masks away from its inputs, so it comes last.
        expected = stock(*arrays, attention_mask=explicit, use_causal_mask=causal)
        assert_close(np.asarray(output)[mask], np.asarray(expected)[mask])


def test_explicit_and_implicit_masks_hold_together():
    rng = np.random.default_rng(0)
    query, value, key = (
        keras.ops.convert_to_tensor(x) for x in randoms((2, 5, 8), (2, 7, 8), (2, 7, 8))
    )
    ours, _ = pair([query.shape, value.shape, key.shape])
    carried, explicit = {}, {}
    for name, x in (("query", query), ("value", value), ("key", key)):
        carried[name], explicit[name] = rng.random((2, *x.shape[:2])) > 0.2
        x._keras_mask = keras.ops.convert_to_tensor(carried[name])
    output = ours(query, value, key, **{f"{name}_mask": m for name, m in explicit.items()})
    joined = {name: carried[name] & explicit[name] for name in carried}
    mask = joined["query"][:, :, None] & (joined["value"] & joined["key"])[:, None]
    plain = [np.asarray(x) for x in (query, value, key)]
    assert_close(output, ours(*plain, attention_mask=mask))
    np.testing.assert_array_equal(output._keras_mask, joined["query"])


@pytest.mark.parametrize("axis", [1, 2])
def test_masks_with_free_axes(axis):
    lengths, free = (4, 5), 3 - axis
    shapes = [(2, n, 3, 8) if axis == 1 else (2, 3, n, 8) for n in lengths]
    ours, _ = pair(shapes, attention_axes=axis)
    arrays = randoms(*shapes)
    rng = np.random.default_rng(0)
    rows, columns = (rng.random(shape[:-1]) > 0.3 for shape in shapes)
    # (B, free, N, T, S)
    first, second = (np.moveaxis(mask, free, 1) for mask in (rows, columns))
    mask = first[:, :, None, :, None] & second[:, :, None, None]
    expected = ours(*arrays, attention_mask=mask)
    assert_close(ours(*arrays, query_mask=rows, value_mask=columns), expected)
    # Without the free axis it holds along that axis.
    first, second = first[:, 0], second[:, 0]
    expected = ours(*arrays, attention_mask=first[:, :, None] & second[:, None])
    assert_close(ours(*arrays, query_mask=first, value_mask=second), expected)


def test_masks_with_several_axes():
    shapes = [(2, 3, 4, 8), (2, 5, 2, 8)]
    ours, _ = pair(shapes)
    arrays = randoms(*shapes)
    rng = np.random.default_rng(0)
    rows, columns = (rng.random(shape[:-1]) > 0.3 for shape in shapes)
    mask = rows[:, None, :, :, None, None] & columns[:, None, None, None]
    expected = ours(*arrays, attention_mask=mask)
    assert_close(ours(*arrays, query_mask=rows, value_mask=columns), expected)


def test_a_mask_object_is_the_array_it_stands_for():
    shapes = [(2, 5, 8), (2, 7, 8)]
    ours, _ = pair(shapes)
    arrays = randoms(*shapes)
    masks = [
        Mask.causal("bottom_right"),
        Mask.lengths([3, 0]),
        Mask.window(1, 2) & Mask.prefix(2),
        Mask.segments([[0, 0, 1, 1, 2]] * 2, [[0, 1, 1, 2, 2, 2, 3]] * 2),
        Mask.blocked(np.random.default_rng(0).random((2, 1, 5, 7)) > 0.5),
    ]
    for mask in masks:
        expected = call(ours, arrays, attention_mask=np.asarray(mask.to_dense(5, 7)))
        assert_close(call(ours, arrays, attention_mask=mask), expected)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float16"])
def test_mixed_precision_agrees_with_stock(policy):
    shapes = [(2, 5, 8), (2, 7, 8)]
    ours, stock = pair(shapes, dtype=policy)
    dtype = policy.removeprefix("mixed_")
    output, scores = call(ours, randoms(*shapes), use_causal_mask=True)
    assert {keras.backend.standardize_dtype(x.dtype) for x in (output, scores)} == {dtype}
    assert_close((output, scores), call(stock, randoms(*shapes), use_causal_mask=True), dtype)


def test_float64_is_exact():
    query, value = randoms((2, 5, 8), (2, 7, 8), dtype="float64")
    layer = MultiHeadAttention(2, 3, dtype="float64")
    layer.build(query.shape, value.shape)
    randomise(layer)
    heads = [
        np.einsum("btd,dnh->btnh", x, np.asarray(dense.kernel)) + np.asarray(dense.bias)
        for x, dense in (
            (query, layer.query_dense),
            (value, layer.key_dense),
            (value, layer.value_dense),
        )
    ]
    expected = reference.dot_product_attention(*heads)
    kernel, bias = np.asarray(layer.output_dense.kernel), np.asarray(layer.output_dense.bias)
    out = np.einsum("btnv,nvd->btd", expected.out, kernel) + bias
    output, scores = layer(query, value, return_attention_scores=True)
    tolerances.assert_values(output, out, FLOAT64)
    tolerances.assert_statistics(scores, expected.weights, FLOAT64)


def test_gate_agrees_with_stock():
    shapes = [(2, 5, 8), (2, 7, 8)]
    for options in ({}, {"num_key_value_heads": 1}):
        ours, stock = pair(shapes, use_gate=True, **options)
        assert len(ours.weights) == 10
        assert_close(ours(*randoms(*shapes)), stock(*randoms(*shapes)))


def test_dropout():
    x = randoms((2, 40, 8))[0]
    layer = MultiHeadAttention(2, 4, dropout=0.25, seed=7, use_bias=False)
    quiet, quiet_scores = layer(x, x, return_attention_scores=True)
    output, scores = layer(x, x, return_attention_scores=True, training=True)
    dropped = np.asarray(scores) == 0
    assert abs(dropped.mean() - 0.25) < 0.05
    np.testing.assert_allclose(
        np.asarray(scores)[~dropped], np.asarray(quiet_scores)[~dropped] / 0.75, rtol=1e-5
    )
    # The scores are the weights that made the output.
    values = layer.value_dense(x)
    heads = keras.ops.einsum("bnts,bsnv->btnv", scores, values)
    assert_close(layer.output_dense(heads), output)
    # Each call drops anew; the same seed drops alike, with or without scores.
    assert not np.allclose(layer(x, x, training=True), output)
    twin = MultiHeadAttention.from_config(layer.get_config())
    twin.build(x.shape, x.shape)
    twin.set_weights(layer.get_weights())
    np.testing.assert_array_equal(twin(x, x, training=True), output)
    np.testing.assert_array_equal(layer(x, x), quiet)


def test_position_bias_and_alibi():
    shapes = [(2, 5, 8), (2, 7, 8)]
    ours, _ = pair(shapes, num_heads=4)
    arrays = randoms(*shapes)
    slopes = np.asarray(alibi_slopes(4))
    distance = np.abs(np.arange(5)[:, None] - np.arange(7))
    bias = (-slopes[:, None, None] * distance).astype("float32")
    plain = call(ours, arrays)
    by_bias = call(ours, arrays, position_bias=bias[None])
    assert_close(call(ours, arrays, alibi_slopes=slopes), by_bias)
    assert not np.allclose(by_bias[0], plain[0])
    # Every head the same, and a bias that hides.
    shared = np.where(distance > 2, -np.inf, 0).astype("float32")
    assert_close(
        call(ours, arrays, position_bias=shared), call(ours, arrays, attention_mask=distance <= 2)
    )


def test_rotary_positions():
    x = randoms((2, 6, 8))[0]
    layer = MultiHeadAttention(2, 4)
    positions = np.arange(6)
    plain = layer(x, x)
    rotated, scores = layer(x, x, rotary_positions=positions, return_attention_scores=True)
    assert not np.allclose(rotated, plain, atol=1e-4)
    # Only differences of positions count.
    shifted = layer(x, x, rotary_positions=np.array([positions + 5, positions]))
    np.testing.assert_allclose(shifted, rotated, atol=2e-5)
    assert_close(layer(x, x, rotary_positions=np.zeros(6, "int32")), plain)
    part = layer(
        x[:, 4:],
        x,
        rotary_positions=positions[4:],
        rotary_key_positions=positions,
        return_attention_scores=True,
    )
    np.testing.assert_allclose(part[1], scores[:, :, 4:], atol=2e-6)


def test_soft_cap():
    shapes = [(2, 5, 8), (2, 7, 8)]
    ours, plain = (
        MultiHeadAttention(2, 4, soft_cap=cap, use_bias=False, seed=0) for cap in (1.5, None)
    )
    query, value = randoms(*shapes)
    for layer in (ours, plain):
        layer.build(*shapes)
        randomise(layer)
    heads = [np.asarray(d(x)) for d, x in ((ours.query_dense, query), (ours.key_dense, value))]
    expected = reference.dot_product_attention(*heads, heads[1], soft_cap=1.5).weights
    scores = call(ours, (query, value))[1]
    np.testing.assert_allclose(scores, expected, atol=2e-6)
    assert not np.allclose(scores, call(plain, (query, value))[1], atol=1e-2)


def test_gradients_agree_with_stock():
    shapes = [(2, 5, 8), (2, 7, 8)]
    ours, stock = pair(shapes)
    arrays = [keras.ops.convert_to_tensor(x) for x in randoms(*shapes)]
    gradients = []
    for layer in (ours, stock):
        output, pull = vjp(
            functools.partial(layer, use_causal_mask=True), *arrays, variables=layer.weights
        )
        gradients.append(pull(2 * output))
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4, rtol=2e-4)


def test_unknown_sizes_with_axes_and_masks():
    query = keras.Input((None, None, 8))
    value = keras.Input((None, None, 8))
    rows = keras.Input((None, None), dtype="bool")
    layer = MultiHeadAttention(2, 4, attention_axes=2)
    output, scores = layer(query, value, query_mask=rows, return_attention_scores=True)
    assert output.shape == (None, None, None, 8)
    assert scores.shape == (None, None, 2, None, None)
    model = keras.Model([query, value, rows], [output, scores])
    arrays = randoms((2, 3, 4, 8), (2, 3, 5, 8))
    mask = np.random.default_rng(0).random((2, 3, 4)) > 0.5
    predicted = model.predict([*arrays, mask], verbose=0)
    assert_close(predicted, list(call(layer, arrays, query_mask=mask)))


def test_empty_keys_give_the_bias_of_the_output():
    layer = MultiHeadAttention(2, 4)
    layer.build((2, 3, 8), (2, None, 8))
    randomise(layer)
    output, scores = call(layer, [np.ones((2, 3, 8)), np.zeros((2, 0, 8))])
    assert scores.shape == (2, 2, 3, 0)
    bias = np.broadcast_to(np.asarray(layer.output_dense.bias), (2, 3, 8))
    assert np.max(np.abs(output - bias)) < TOLERANCE["float32"]


@pytest.mark.parametrize("shapes", [[(0, 5, 8), (0, 3, 8)], [(2, 0, 8), (2, 3, 8)]])
def test_empty_batches_and_queries(shapes):
    layer = MultiHeadAttention(2, 4)
    output, scores = call(layer, randoms(*shapes), use_causal_mask=True)
    assert output.shape == shapes[0]
    assert scores.shape == (shapes[0][0], 2, shapes[0][1], 3)


@pytest.mark.parametrize("shape", [(2, 6, 8), (2, 6, 3, 8)])
@pytest.mark.parametrize("window", [None, 2])
def test_causal_holds_with_dropout_and_free_axes(shape, window):
    layer = MultiHeadAttention(2, 4, dropout=0.3, attention_axes=1, sliding_window=window)
    x = keras.ops.convert_to_tensor(randoms(shape)[0])
    distance = np.arange(6)[:, None] - np.arange(6)
    hidden = (distance < 0) | (distance >= (window or 6))
    for training in (False, True):
        _, scores = call(layer, (x, x), use_causal_mask=True, training=training)
        assert np.all(np.asarray(scores)[..., hidden] == 0)
        output, pull = vjp(
            lambda x, training=training: layer(x, x, use_causal_mask=True, training=training), x
        )
        for i in range(6):
            cotangent = np.zeros(output.shape, "float32")
            cotangent[:, i] = 1
            gradient = np.asarray(pull(cotangent)[0])
            reached = np.any(gradient != 0, axis=tuple(range(2, len(shape))))
            assert not np.any(reached[:, hidden[i]])
