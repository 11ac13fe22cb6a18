"""The model made of stock Keras layers, as in the tutorials, trained by `train_on_batch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from benchmarks.translators._training import (
    BETAS,
    EPSILON,
    config_of,
    decode_greedily,
    sinusoids,
    steps,
)
from heed.models import TransformerConfig
from heed.seq2seq import RunFolder


def translate(run: RunFolder, rows: Sequence[Sequence[int]]) -> list[list[int]]:
    """Trains the model and translates with its last weights."""
    keras.utils.set_random_seed(run.options.seed)
    config, options, task = config_of(run), run.options, run.task()
    encoder, decoder, model = make_models(config)

    def loss(written: Any, logits: Any) -> Any:
        one_hot = ops.one_hot(ops.cast(written, "int32"), config.target_vocabulary_size)
        smoothing = options.label_smoothing
        wanted = (1 - smoothing) * one_hot + smoothing / config.target_vocabulary_size
        losses = -ops.sum(wanted * ops.log_softmax(logits), axis=-1)
        real = ops.cast(ops.not_equal(written, config.pad_id), losses.dtype)
        return ops.sum(losses * real) / ops.sum(real)

    adam = keras.optimizers.Adam(
        options.rate(0), *BETAS, epsilon=EPSILON, global_clipnorm=options.clip_norm
    )
    model.compile(adam, loss, jit_compile=False)
    for step in steps(run):
        adam.learning_rate.assign(step.rate)
        model.train_on_batch([step.source, step.read], step.written)

    tokens = tf.TensorSpec((None, None), tf.int32)
    vectors = tf.TensorSpec((None, None, config.width), tf.float32)
    output = model.get_layer("target")

    @tf.function(input_signature=[tokens])
    def encode(source: Any) -> Any:
        return encoder(source, training=False)

    @tf.function(input_signature=[tokens, tokens, vectors, tf.TensorSpec((), tf.int32)])
    def score(source: Any, target: Any, memory: Any, index: Any) -> Any:
        return output(decoder([source, target, memory], training=False)[:, index], reverse=True)

    return decode_greedily(
        config,
        lambda source: (source, encode(source)),
        lambda state, target, index: score(state[0], target, state[1], index).numpy(),
        rows,
        task.longest_target,
    )


class Positions(layers.Layer):
    """Scales embeddings by sqrt(D) and adds sinusoids."""

    def call(self, x: Any) -> Any:
        """(B, T, D) to the same."""
        width = x.shape[-1]
        table = ops.convert_to_tensor(sinusoids(1_024, width))
        return x * width**0.5 + table[: ops.shape(x)[1]]


def make_models(config: TransformerConfig) -> tuple[keras.Model, keras.Model, keras.Model]:
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


def _attend(x: Any, value: Any, config: TransformerConfig, **arguments: Any) -> Any:
    query = layers.LayerNormalization(epsilon=1e-5)(x)
    attention = layers.MultiHeadAttention(config.num_heads, config.width // config.num_heads)
    attended = attention(query, query if value is None else value, **arguments)
    return layers.Add()([x, layers.Dropout(config.dropout)(attended)])


def _feed_forward(x: Any, config: TransformerConfig) -> Any:
    hidden = layers.LayerNormalization(epsilon=1e-5)(x)
    hidden = layers.Dense(config.feed_forward_width, activation="relu")(hidden)
    hidden = layers.Dropout(config.dropout)(hidden)
    hidden = layers.Dense(config.width)(hidden)
    return layers.Add()([x, layers.Dropout(config.dropout)(hidden)])
