"""The key/value cache of MultiHeadAttention: step by step equals all at once."""

import warnings

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.layers import MultiHeadAttention
from heed.ops import Mask, alibi_slopes
from tests.backend import on_tensorflow, tf
from tests.layers.stock import assert_close, randomise, randoms


def built(width=8, **options):
    layer = MultiHeadAttention(4, 6, **options)
    layer.build((None, None, width), (None, None, width))
    randomise(layer)
    return layer


def decode(layer, x, steps, length=None, scores=False, **arguments):
    """Feed `x` in steps of these lengths; return outputs, scores and the last cache."""
    cache = layer.make_cache(x.shape[0], length or x.shape[1])
    outputs, weights, start = [], [], 0
    for step in steps:
        part = slice(start, start + step)
        mine = {k: f(part) for k, f in arguments.items()}
        result = layer(
            x[:, part],
            x[:, part],
            cache=cache,
            cache_index=start,
            return_attention_scores=scores,
            **mine,
        )
        outputs.append(result[0])
        weights.append(result[1])
        cache = result[-1]
        start += step
    return np.concatenate(outputs, 1), weights, cache


@given(
    steps=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    spare=st.integers(0, 3),
    groups=st.sampled_from([1, 2, 4]),
    window=st.none() | st.integers(1, 4),
    value_dim=st.sampled_from([None, 3]),
    rotary=st.booleans(),
)
def test_steps_equal_the_full_forward(steps, spare, groups, window, value_dim, rotary):
    layer = built(num_key_value_heads=groups, sliding_window=window, value_dim=value_dim)
    length = sum(steps)
    x = randoms((2, length, 8))[0]
    positions = np.arange(length + spare)
    rotation = {"rotary_positions": positions[:length]} if rotary else {}
    expected = layer(x, x, use_causal_mask=True, **rotation)
    parts = {"rotary_positions": lambda part: positions[part]} if rotary else {}
    output, _, cache = decode(layer, x, steps, length + spare, **parts)
    np.testing.assert_allclose(output, expected, atol=2e-5)
    assert np.all(np.asarray(cache["key"])[:, length:] == 0)
    assert cache["key"].shape == (2, length + spare, groups, 6)
    assert cache["value"].shape == (2, length + spare, groups, value_dim or 6)


def test_masks_and_biases_hold_in_a_cache():
    layer = built()
    x = randoms((2, 6, 8))[0]
    rng = np.random.default_rng(0)
    mask = rng.random((2, 6, 6)) > 0.3
    bias = rng.normal(size=(1, 4, 6, 6)).astype("float32")
    keys = rng.random((2, 6)) > 0.2
    slopes = np.asarray(alibi_slopes(4))
    whole = {"attention_mask": mask, "position_bias": bias, "value_mask": keys}
    expected, scores = layer(
        x, x, use_causal_mask=True, alibi_slopes=slopes, return_attention_scores=True, **whole
    )
    output, weights, _ = decode(
        layer,
        x,
        [2, 1, 3],
        scores=True,
        attention_mask=lambda part: mask[:, part],
        position_bias=lambda part: bias[:, :, part],
        value_mask=lambda part: keys,  # (B, L): all that the cache holds
        alibi_slopes=lambda part: slopes,
    )
    np.testing.assert_allclose(output, expected, atol=2e-5)
    np.testing.assert_allclose(np.concatenate(weights, 2), scores, atol=2e-6)
    # A mask over the new positions alone.
    *_, cache = decode(layer, x[:, :2], [2], 6)
    step = x[:, 2:3]
    arguments = {"cache": cache, "cache_index": 2}
    new = layer(step, step, value_mask=keys[:, 2:3], **arguments)[0]
    seen = np.concatenate([np.ones((2, 2), bool), keys[:, 2:3], np.zeros((2, 3), bool)], 1)
    assert_close(new, layer(step, step, value_mask=seen, **arguments)[0])


def test_a_mask_object_holds_in_a_cache():
    layer = built()
    x = randoms((2, 6, 8))[0]
    expected = layer(x, x, use_causal_mask=True, attention_mask=Mask.lengths([3, 6]))
    output, _, _ = decode(layer, x, [4, 2], attention_mask=lambda part: Mask.lengths([3, 6]))
    np.testing.assert_allclose(output, expected, atol=2e-5)


@on_tensorflow
@pytest.mark.parametrize("compiled", [False, True])
def test_a_loop_in_a_graph(compiled):
    layer = built()
    x = tf.constant(randoms((2, 6, 8))[0])
    expected = layer(x, x, use_causal_mask=True)

    @tf.function(jit_compile=compiled)
    def run(x):
        def body(i, output, cache):
            step = tf.gather(x, [i], axis=1)
            new, cache = layer(step, step, cache=cache, cache_index=i)
            return i + 1, keras.ops.slice_update(output, [0, i, 0], new), cache

        loop = (0, tf.zeros_like(x), layer.make_cache(2, 6))
        return tf.while_loop(lambda i, *_: i < 6, body, loop)[1]

    np.testing.assert_allclose(run(x), expected, atol=2e-5)


def test_cross_attention_from_a_projected_cache():
    layer = built()
    query, encoded = randoms((2, 3, 8), (2, 5, 8))
    mask = np.array([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]], bool)
    expected, scores = layer(query, encoded, value_mask=mask, return_attention_scores=True)
    cache = layer.project_cache(encoded)
    for i in range(3):
        output, weights, same = layer(
            query[:, i : i + 1],
            None,
            value_mask=mask,
            cache=cache,
            return_attention_scores=True,
        )
        np.testing.assert_allclose(output[:, 0], expected[:, i], atol=1e-6)
        np.testing.assert_allclose(weights[:, :, 0], scores[:, :, i], atol=1e-6)
        assert same is cache or all(np.array_equal(same[k], cache[k]) for k in cache)
    other = randoms((2, 5, 8), seed=9)[0]
    direct = layer(query, encoded, other)
    cached, _ = layer(query, None, cache=layer.project_cache(encoded, key=other))
    assert_close(cached, direct)


def test_inputs_that_carry_masks():
    layer = built()
    x = keras.layers.Embedding(5, 8, mask_zero=True)(np.array([[1, 2, 0], [3, 0, 0]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        cache = layer.project_cache(x)
        output, new = layer(x, x, cache=layer.make_cache(2, 3), cache_index=0)
    np.testing.assert_allclose(new["key"], cache["key"], atol=1e-6)
    np.testing.assert_allclose(output, layer(x, x, use_causal_mask=True), atol=1e-6)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16", "float64"])
def test_dtypes_of_a_cache(policy):
    layer = built(dtype=policy)
    x = randoms((2, 6, 8))[0]
    dtype = layer.compute_dtype
    expected = layer(x, x, use_causal_mask=True)
    output, _, cache = decode(layer, x, [3, 3])
    assert {keras.backend.standardize_dtype(x.dtype) for x in cache.values()} == {dtype}
    tolerance = {"float16": 5e-3, "bfloat16": 5e-2}.get(dtype, 1e-5)
    np.testing.assert_allclose(
        output.astype("float32"), np.asarray(expected).astype("float32"), atol=tolerance
    )
    wide = layer.make_cache(1, 2, dtype="float32")["key"]
    assert keras.backend.standardize_dtype(wide.dtype) == "float32"


def test_symbolic_shapes_of_a_cache():
    layer = built(num_key_value_heads=2)
    x = keras.Input((1, 8), batch_size=2)
    cache = {
        name: keras.Input((7, 2, 6), batch_size=2, dtype="float32") for name in ("key", "value")
    }
    index = keras.Input(batch_shape=(), dtype="int32")
    output, scores, new = layer(x, x, cache=cache, cache_index=index, return_attention_scores=True)
    assert output.shape == (2, 1, 8)
    assert scores.shape == (2, 4, 1, 7)
    assert new["key"].shape == new["value"].shape == (2, 7, 2, 6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cache_index": 0}, "`cache_index` needs a `cache`"),
        ({"cache": {"key": 1}, "cache_index": 0}, '"key" and "value"'),
        ({"cache": (2, 6, 4, 5), "cache_index": 0}, r'cache\["key"\]. must have the shape'),
        ({"cache": (3, 6, 4, 6), "cache_index": 0}, r'cache\["key"\]. must have the shape'),
        ({"cache": (2, 6, 2, 6), "cache_index": 0}, r'cache\["key"\]. must have the shape'),
        ({"cache": (2, 6, 4, 6), "cache_index": 5}, "`cache_index` must leave room.*=5"),
        ({"cache": (2, 6, 4, 6), "cache_index": -1}, "`cache_index` must leave room.*=-1"),
        ({"cache": (2, 1, 4, 6), "cache_index": 0}, "`cache_index` must leave room.*=0"),
    ],
)
def test_errors(arguments, message):
    layer = built()
    x = randoms((2, 2, 8))[0]
    if isinstance(arguments.get("cache"), tuple):
        shape = arguments["cache"]
        arguments = {**arguments, "cache": {k: keras.ops.zeros(shape) for k in ("key", "value")}}
    with pytest.raises(ValueError, match=message):
        layer(x, x, **arguments)


@on_tensorflow
@pytest.mark.parametrize("index", [5, -1])
def test_a_tensor_beyond_the_cache_is_an_error_with_both_numbers(index):
    """It would overwrite the last positions."""
    layer = built()
    x = randoms((2, 2, 8))[0]
    text = rf"`cache_index` must leave room.*cache_index=\D*{index}\D.*length of the cache=\D*6"

    def step(index):
        return layer(x, x, cache=layer.make_cache(2, 6), cache_index=index)[0]

    for start in (tf.constant(index), np.int64(index), tf.constant(index, tf.int64)):
        with pytest.raises(ValueError, match=text):
            step(start)
    traced = tf.function(step)
    assert_close(traced(tf.constant(4)), step(4))
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        traced(tf.constant(index))


def test_a_mask_that_is_given_and_one_that_is_carried_hold_together_in_a_cache():
    """One of all cached positions, the other of the new ones."""
    layer = built()
    x = randoms((2, 4, 8))[0]
    _, cache = layer(x[:, :2], x[:, :2], cache=layer.make_cache(2, 6), cache_index=0)
    step = keras.ops.convert_to_tensor(x[:, 2:])
    arguments = {"cache": cache, "cache_index": 2}
    old = np.array([[False, True], [True, True]])
    new = np.array([[True, False], [True, True]])
    both = np.concatenate([old, new, np.ones((2, 2), bool)], 1)
    expected = layer(step, step, value_mask=both, **arguments)[0]
    value = keras.ops.copy(step)
    value._keras_mask = keras.ops.convert_to_tensor(new)
    explicit = np.concatenate([old, np.ones((2, 4), bool)], 1)
    assert_close(layer(step, value, value_mask=explicit, **arguments)[0], expected)
    plain = layer(step, step, **arguments)[0]
    assert np.abs(np.asarray(plain) - np.asarray(expected)).max() > 1e-3


def test_more_errors():
    layer = MultiHeadAttention(4, 6)
    with pytest.raises(ValueError, match="build the layer"):
        layer.project_cache(np.ones((2, 3, 8)))
    with pytest.raises(ValueError, match="`length` must be an integer >= 1"):
        layer.make_cache(2, 0)
    layer = built()
    x = randoms((2, 2, 8))[0]
    with pytest.raises(ValueError, match="`value` must be given"):
        layer(x, None)
    with pytest.raises(ValueError, match="`value` must be given"):
        layer(x, None, cache=layer.make_cache(2, 4), cache_index=0)
    mask = np.ones((2, 3), bool)
    with pytest.raises(ValueError, match=r"`value_mask` must .* per cached position"):
        layer(x, x, cache=layer.make_cache(2, 4), cache_index=0, value_mask=mask)
    axes = MultiHeadAttention(4, 6, attention_axes=2)
    axes.build((2, 3, 4, 8), (2, 3, 4, 8))
    y = np.ones((2, 3, 4, 8))
    with pytest.raises(ValueError, match="`cache` needs inputs of the shape"):
        axes(y, y, cache=axes.make_cache(2, 4), cache_index=0)
    with pytest.raises(ValueError, match="needs inputs of the shape"):
        axes.project_cache(y)
