"""heed's Transformer learns as the same model of stock Keras layers does: the same loss and gradients."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from heed.layers.dropout import Dropout
from heed.models import Transformer, TransformerConfig

pytestmark = pytest.mark.slow

CONFIG = TransformerConfig(
    30, 40, width=8, num_heads=2, feed_forward_width=16, encoder_layers=1, decoder_layers=2
)
SOURCE = np.array([[5, 6, 7, 2], [8, 9, 2, 0]], "int32")
TARGET = np.array([[1, 5, 6], [1, 7, 0]], "int32")


class Positions(layers.Layer):
    """Scales embeddings by sqrt(D) and adds sinusoids."""

    def call(self, x):
        """Map (B, T, D) to the same."""
        width = x.shape[-1]
        rates = 10_000.0 ** -(np.arange(0, width, 2) / width)
        angles = np.arange(x.shape[1] or 9)[:, None] * rates
        # Each sine beside its cosine.
        table = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(angles), width)
        return x * width**0.5 + ops.convert_to_tensor(table.astype("float32"))[: ops.shape(x)[1]]


def make_models(config):
    """Return the encoder, the decoder without its output layer, and the whole model."""
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    seen = ops.expand_dims(ops.not_equal(source, config.pad_id), 1)
    sizes = (config.source_vocabulary_size, config.target_vocabulary_size)
    tables = [
        layers.ReversibleEmbedding(
            size,
            config.width,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=config.width**-0.5),
            name=name,
        )
        for size, name in zip(sizes, ("source", "target"), strict=True)
    ]
    x = layers.Dropout(config.dropout)(Positions()(tables[0](source)))
    for _ in range(config.encoder_layers):
        x = _feed_forward(_attend(x, None, config, attention_mask=seen), config)
    memory = layers.LayerNormalization(epsilon=1e-5)(x)
    read = keras.Input((None, config.width))
    x = layers.Dropout(config.dropout)(Positions()(tables[1](target)))
    for _ in range(config.decoder_layers):
        x = _attend(x, None, config, use_causal_mask=True)
        x = _feed_forward(_attend(x, read, config, attention_mask=seen), config)
    hidden = layers.LayerNormalization(epsilon=1e-5)(x)
    encoder = keras.Model(source, memory)
    decoder = keras.Model([source, target, read], hidden)
    logits = tables[1](decoder([source, target, encoder(source)]), reverse=True)
    return encoder, decoder, keras.Model([source, target], logits)


def _attend(x, value, config, **arguments):
    query = layers.LayerNormalization(epsilon=1e-5)(x)
    attention = layers.MultiHeadAttention(config.num_heads, config.width // config.num_heads)
    attended = attention(query, query if value is None else value, **arguments)
    return layers.Add()([x, layers.Dropout(config.dropout)(attended)])


def _feed_forward(x, config):
    hidden = layers.LayerNormalization(epsilon=1e-5)(x)
    hidden = layers.Dense(config.feed_forward_width, activation="relu")(hidden)
    hidden = layers.Dropout(config.dropout)(hidden)
    hidden = layers.Dense(config.width)(hidden)
    return layers.Add()([x, layers.Dropout(config.dropout)(hidden)])


def in_order_of_stock_layers(variables):
    """Return each normalisation before the part that reads it."""
    found, held = [], []
    for variable in variables:
        if "embeddings" in variable.path or "_norm/" in variable.path:
            found.append(variable)
        else:
            held.append(variable)
        if variable.path.endswith("_norm/beta"):
            found, held = found + held, []
    return found


def test_heeds_learns_as_stock_layers_do(monkeypatch):
    """The same weights, and the same numbers dropped: the same loss and gradients."""
    config = dataclasses.replace(CONFIG, dropout=0.3)
    heeds = Transformer(config)
    heeds({"source": SOURCE, "target": TARGET})
    monkeypatch.setattr(keras.layers, "Dropout", Dropout)
    stock = make_models(config)[2]
    variables = in_order_of_stock_layers(heeds.trainable_variables)
    for mine, theirs in zip(variables, stock.trainable_variables, strict=True):
        mine.assign(mine + 0.1 * keras.random.normal(mine.shape, seed=3))  # biases are not 0 then
        theirs.assign(mine)

    def learned(model, of, inputs):
        dropping = [layer for layer in model._flatten_layers() if isinstance(layer, Dropout)]
        assert len(dropping) == 1 + 3 + 1 + 2 * 4
        for layer in dropping:  # a seed for all, in whatever order they are
            layer.seed_generator.state.assign([7, 7])
        with tf.GradientTape() as tape:
            losses = keras.ops.log_softmax(model(inputs, training=True))[..., 5]
            loss = -tf.reduce_sum(losses * [[1.0, 1, 1], [1, 1, 0]])
        found = tape.gradient(loss, [variable.value for variable in of])
        return loss, [np.asarray(tf.convert_to_tensor(x)) for x in found]

    loss, gradients = learned(heeds, variables, {"source": SOURCE, "target": TARGET})
    wanted = learned(stock, stock.trainable_variables, [SOURCE, TARGET])
    np.testing.assert_allclose(loss, wanted[0], rtol=1e-5)
    for variable, found, expected in zip(variables, gradients, wanted[1], strict=True):
        atol = 1e-3 * max(np.abs(expected).max(), 0.01)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=atol, err_msg=variable.path)
        assert np.any(expected) or variable.path.endswith("key/bias")
