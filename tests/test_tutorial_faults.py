"""The usual mistakes of tutorial code: the usual way fails, and heed's way is right.

They are named in docs/from-tutorials.md.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import heed
from heed import Mask, layers, models, ops


def usual_attention(query, key, value, mask=None, width=None):
    """Return attention over (..., T, H) as tutorials write it; mask: 1 = ignore."""
    scores = tf.matmul(query, key, transpose_b=True)
    scores /= tf.cast(width or query.shape[-1], scores.dtype) ** 0.5
    if mask is not None:
        scores += tf.cast(mask, scores.dtype) * -1e9
    weights = tf.nn.softmax(scores)
    return tf.matmul(weights, value), weights


def _random(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _query_key_value(dtype="float32"):
    return (_random(2, 3, 8, dtype=dtype, seed=seed) for seed in range(3))


def test_adding_a_large_number_gives_padding_ordinary_weights():
    query, key, value = _query_key_value()
    ignore = np.zeros((2, 3, 3), "float32")
    ignore[:, 1] = 1  # nothing is left for the second query
    usual, weights = usual_attention(query, key, value, ignore)
    np.testing.assert_allclose(np.sum(weights, -1), 1, rtol=1e-5)  # it attends nevertheless
    assert np.abs(usual[:, 1]).max() > 0.1
    output, weights = ops.scaled_dot_product_attention(
        query, key, value, Mask.blocked(ignore), return_weights=True
    )
    output, usual = np.array(output), np.array(usual)
    assert not output[:, 1].any()
    assert not np.any(weights[:, 1])
    np.testing.assert_allclose(output[:, [0, 2]], usual[:, [0, 2]], rtol=1e-5, atol=1e-6)


def test_adding_a_large_number_in_float16_gives_nan():
    query, key, value = _query_key_value("float16")
    ignore = np.zeros((2, 3, 3))
    ignore[:, :, 2] = 1
    with np.errstate(all="ignore"):
        usual, _ = usual_attention(query, key, value, ignore)
    assert np.isnan(usual).all()
    output = ops.scaled_dot_product_attention(query, key, value, Mask.blocked(ignore))
    exact, _ = usual_attention(*(x.astype("float64") for x in (query, key, value)), ignore)
    assert output.dtype == "float16"
    np.testing.assert_allclose(np.array(output, "float64"), exact, atol=2e-3)


def test_the_scale_is_that_of_one_head():
    heads, width = 4, 16
    query, key, value = (_random(2, 64, heads, width, seed=seed) for seed in range(3))
    # What the softmax sees should have the variance 1, however many heads there are.
    scores = np.einsum("btnh,bsnh->bnts", query, key)
    assert np.var(scores / np.sqrt(width)) == pytest.approx(1, rel=0.1)
    assert np.var(scores / np.sqrt(heads * width)) == pytest.approx(1 / heads, rel=0.1)
    transposed = [x.transpose(0, 2, 1, 3) for x in (query, key, value)]
    flat, _ = usual_attention(*transposed, width=heads * width)
    right, _ = usual_attention(*transposed)
    output = np.array(ops.dot_product_attention(query, key, value)).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(output, right, rtol=1e-4, atol=1e-5)
    assert np.abs(output - flat).max() > 0.1


def test_values_may_be_wider_than_keys():
    heads, key_dim, value_dim = 2, 4, 8
    states = _random(1, 5, 8)
    key = keras.layers.Dense(heads * key_dim)(states)
    value = keras.layers.Dense(heads * value_dim)(states)

    def split_heads(x):
        return tf.reshape(x, (1, 5, heads, key_dim))

    split_heads(key)
    with pytest.raises(tf.errors.InvalidArgumentError):
        split_heads(value)
    # With -1 for a dimension it does not even fail: positions are mixed.
    assert tf.reshape(value, (1, -1, heads, key_dim)).shape[1] != 5

    layer = layers.MultiHeadAttention(heads, key_dim, value_dim, output_shape=8)
    output, weights = layer(states, states, return_attention_scores=True)
    assert output.shape == (1, 5, 8)
    assert weights.shape == (1, heads, 5, 5)


def test_a_single_state_gives_a_single_context():
    state, outputs = _random(2, 6), _random(2, 5, 8)

    class Usual(keras.layers.Layer):
        """Expands the query, then asks how many dimensions it had."""

        def __init__(self, units):
            super().__init__()
            self.w1, self.w2 = keras.layers.Dense(units), keras.layers.Dense(units)
            self.v = keras.layers.Dense(1)

        def call(self, query, values):
            if len(query.shape) == 2:
                query = tf.expand_dims(query, 1)
            scores = self.v(tf.tanh(self.w1(query)[:, :, None] + self.w2(values)[:, None]))
            context = tf.einsum("btsk,bsv->btv", tf.nn.softmax(scores, axis=2), values)
            return tf.squeeze(context, 1) if tf.rank(query) == 2 else context

    assert Usual(4)(state, outputs).shape == (2, 1, 8)
    layer = layers.AdditiveAttention(4)
    context, weights = layer(state, outputs, return_attention_scores=True)
    assert context.shape == (2, 8)
    assert weights.shape == (2, 5)
    sequence = layer(state[:, None], outputs)
    np.testing.assert_allclose(np.array(sequence)[:, 0], context, rtol=1e-6)


def test_an_encoder_keeps_the_length_and_a_transformer_does_not_have_to():
    source = np.random.default_rng(0).integers(3, 10, (4, 5))
    target = np.random.default_rng(1).integers(3, 10, (4, 6))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    encoder = keras.Sequential(
        [
            keras.layers.Embedding(10, 8),
            layers.TransformerEncoderLayer(2, 16),
            keras.layers.Dense(10),
        ]
    )
    encoder.compile("adam", loss, run_eagerly=True)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        encoder.fit(source, target, verbose=0)

    config = models.TransformerConfig(
        10, 10, width=8, num_heads=2, encoder_layers=1, decoder_layers=1, feed_forward_width=16
    )
    transformer = models.Transformer(config)
    transformer.compile("adam", loss, run_eagerly=True)
    shifted = np.concatenate([np.full((4, 1), config.start_id), target[:, :-1]], axis=1)
    history = transformer.fit({"source": source, "target": shifted}, target, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert transformer({"source": source, "target": shifted}).shape == (4, 6, 10)


def test_a_wrong_argument_is_an_error_also_without_asserts():
    usual = """
def usual(width, num_heads):
    assert width % num_heads == 0
    return width // num_heads
"""
    names = {}
    exec(compile(usual, "usual", "exec", optimize=1), names)  # as `python -O` does
    assert names["usual"](10, 4) == 2
    with pytest.raises(ValueError, match=r"num_heads.*Received.*3"):
        models.TransformerConfig(10, 10, width=8, num_heads=3)
    with pytest.raises(ValueError, match=r"num_heads.*Received.*0"):
        layers.MultiHeadAttention(num_heads=0, key_dim=8)


def test_a_mask_says_which_convention_it_follows():
    query, key, value = _query_key_value()
    ignore = 1 - np.tri(3, dtype="int32")
    expected, _ = usual_attention(query, key, value, ignore)
    blocked = ops.scaled_dot_product_attention(query, key, value, Mask.blocked(ignore))
    np.testing.assert_allclose(blocked, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"1 means ignore.*Mask\.blocked"):
        ops.scaled_dot_product_attention(query, key, value, ignore)
    as_attend = ops.scaled_dot_product_attention(query, key, value, ignore == 1)
    assert np.abs(np.array(as_attend) - expected).max() > 0.1  # booleans mean what they say
    causal = ops.scaled_dot_product_attention(query, key, value, Mask.causal())
    np.testing.assert_allclose(causal, expected, rtol=1e-5, atol=1e-6)


def test_layers_take_query_value_key_and_ops_take_query_key_value():
    layer = layers.MultiHeadAttention(2, 4)
    query, key, value = _query_key_value()
    by_name = layer(query=query, key=key, value=value)
    np.testing.assert_array_equal(layer(query, value, key), by_name)
    assert np.abs(np.array(layer(query, key, value)) - np.array(by_name)).max() > 1e-3


def test_a_reshape_to_heads_without_a_transpose_mixes_positions():
    heads, width, length = 4, 8, 6
    query, key, value = (_random(2, length, heads * width, seed=seed) for seed in range(3))

    def attend_as(reshaped):
        return usual_attention(*(reshaped(x) for x in (query, key, value)))[0]

    # (B, T, N*H) as (B, N, T, H) at once: a "head" is a few positions with all their features.
    mixed = attend_as(lambda x: x.reshape(2, heads, length, width)).numpy()
    right = attend_as(lambda x: x.reshape(2, length, heads, width).transpose(0, 2, 1, 3)).numpy()
    assert mixed.shape == right.shape
    mixed = mixed.reshape(2, length, -1)
    right = right.transpose(0, 2, 1, 3).reshape(2, length, -1)
    assert np.abs(mixed - right).max() > 0.1
    # In heed the reshape is all there is to do.
    split = (x.reshape(2, length, heads, width) for x in (query, key, value))
    output = np.array(ops.dot_product_attention(*split)).reshape(2, length, -1)
    np.testing.assert_allclose(output, right, rtol=1e-4, atol=1e-5)


def test_a_mask_for_heads_on_inputs_without_them_mixes_the_batch():
    query, key, value = _query_key_value()
    ignore = np.zeros((2, 1, 1, 3), "float32")
    ignore[1, ..., 1:] = 1  # the second sequence has one real position
    usual, _ = usual_attention(query, key, value, ignore)
    assert usual.shape == (2, 2, 3, 8)  # each sequence with the padding of each
    with pytest.raises(ValueError, match=r"`mask` must broadcast.*\(2, 3, 3\).*\(2, 1, 1, 3\)"):
        ops.scaled_dot_product_attention(query, key, value, Mask.blocked(ignore))
    with pytest.raises(ValueError, match=r"`mask` must broadcast.*\(2, 3, 3\).*\(2, 1, 1, 3\)"):
        ops.scaled_dot_product_attention(query, key, value, ignore == 0)
    expected, _ = usual_attention(query, key, value, ignore[:, 0])
    output = ops.scaled_dot_product_attention(query, key, value, Mask.blocked(ignore[:, 0]))
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)
    # A layer with heads takes the mask as it is.
    layer = layers.MultiHeadAttention(2, 4)
    by_mask = layer(query, value, attention_mask=ignore == 0)
    np.testing.assert_allclose(by_mask, layer(query, value, value_mask=ignore[:, 0, 0] == 0))


def test_keras_backend_has_no_softmax_any_more():
    with pytest.raises(ImportError):
        exec("from keras.backend import softmax")
    query, key, value = _query_key_value()
    expected, _ = usual_attention(query, key, value)
    scores = keras.ops.matmul(query, keras.ops.swapaxes(key, 1, 2)) / 8**0.5
    np.testing.assert_allclose(
        keras.ops.matmul(keras.ops.softmax(scores), value), expected, rtol=1e-5, atol=1e-6
    )
    output = ops.scaled_dot_product_attention(query, key, value)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


def test_the_two_numbers_of_multi_head_attention():
    states = _random(1, 3, 128)
    for cls in (keras.layers.MultiHeadAttention, layers.MultiHeadAttention):
        many = cls(128, 8)  # the tutorial's MultiHeadAttention(d_model, num_heads)
        assert many(states, states, return_attention_scores=True)[1].shape == (1, 128, 3, 3)
        right = cls(num_heads=8, key_dim=128 // 8)
        assert right(states, states, return_attention_scores=True)[1].shape == (1, 8, 3, 3)
        assert many.count_params() > 7 * right.count_params()


def test_the_first_argument_of_keras_additive_attention_is_no_width():
    query, value = _random(2, 3, 50), _random(2, 5, 60, seed=1)
    usual = keras.layers.AdditiveAttention(70)  # use_scale=70, which counts as True
    usual([value, value])
    assert [tuple(weight.shape) for weight in usual.weights] == [(60,)]  # no projection
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        keras.layers.AdditiveAttention(70)([query, value])
    layer = layers.AdditiveAttention(70)
    assert layer(query, value).shape == (2, 3, 60)
    assert (50, 70) in [tuple(weight.shape) for weight in layer.weights]
    with pytest.raises(ValueError, match=r"`units` must .*units=True"):
        layers.AdditiveAttention(True)


def test_fit_does_not_take_jit_compile():
    x = keras.Input((5, 8))
    model = keras.Model(x, layers.MultiHeadAttention(2, 4)(x, x))
    model.compile("sgd", "mse")
    states = _random(4, 5, 8)
    with pytest.raises(TypeError, match="jit_compile"):
        model.fit(states, states, jit_compile=True, verbose=0)
    with heed.set_implementation("portable"):  # the native kernels turn XLA off
        model.compile("sgd", "mse", jit_compile=True)
        assert model.jit_compile
        history = model.fit(states, states, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


@pytest.mark.slow
def test_for_litert_heeds_layers_become_those_of_keras(tmp_path):
    def exported(model):
        model.export(tmp_path / "model.tflite", format="litert", verbose=False)
        return (tmp_path / "model.tflite").read_bytes()

    litert = pytest.importorskip("ai_edge_litert.interpreter")
    x = keras.Input((5, 8), batch_size=1)
    model = keras.Model(x, layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    stock = layers.replace_attention(model, by="keras")
    try:
        content = exported(stock)
    except (ValueError, ImportError, AttributeError) as error:
        pytest.skip(f"this version of Keras or TensorFlow does not write LiteRT: {error}")
    for implementation in ("auto", "portable"):
        with (
            heed.set_implementation(implementation),
            pytest.raises(Exception, match=r"custom op|does not dominate"),
        ):
            exported(model)
    interpreter = litert.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    states = _random(1, 5, 8)
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], states)
    interpreter.invoke()
    output = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_allclose(output, model(states), rtol=1e-4, atol=1e-5)
