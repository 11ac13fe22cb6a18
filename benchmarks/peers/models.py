"""Whole models: a Transformer of Keras' own layers, run as by `fit` and `predict`, stock and accelerated."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers

import heed
from benchmarks.cases import MODEL_LAYERS, Case
from benchmarks.peers import Prepared

VOCABULARY = 8000
DROPOUT = 0.1


class Positions(layers.Layer):
    """Adds a learned vector for each position."""

    def build(self, input_shape: Any) -> None:
        """Make the vectors."""
        self.vectors = self.add_weight(shape=input_shape[1:], initializer="normal")

    def call(self, inputs: Any) -> Any:
        """Map (B, T, D) to the same."""
        return inputs + self.vectors


class ProjectionsAlone(layers.MultiHeadAttention):
    """Multi-head attention without attention: each head returns the sum of its query, key and value."""

    def _compute_attention(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        return query + key + value, None


def accelerated(case: Case) -> Prepared:
    """Do as `stock`, with heed's attention for the rest of the process."""
    heed.accelerate()
    return stock(case)


def without_attention(case: Case) -> Prepared:
    """Do as `stock`, without the part that attention can make faster: each head sums its query, key and value."""
    return stock(case, ProjectionsAlone)


def stock(case: Case, attention: type[layers.Layer] = layers.MultiHeadAttention) -> Prepared:
    """Compile a model and make one batch, for `train_on_batch` if the case has backward, else `predict_on_batch`."""
    keras.utils.set_random_seed(0)
    model = (decoder if case.causal else encoder)(case, attention)
    # At a learning rate of 0 the weights stay the same, and so does the work of each step.
    model.compile(
        keras.optimizers.Adam(0.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    ids, real = tokens(case)
    targets = np.roll(ids, -1, axis=1)

    def arrays(_: Any) -> list[np.ndarray]:
        # Outputs at padding do not count.
        return [np.where(real[..., None], model.predict_on_batch(ids), 0.0)]

    if not case.backward:
        return Prepared(lambda: model.predict_on_batch(ids), arrays)
    model.optimizer.build(model.trainable_variables)  # its state is not part of a step
    return Prepared(lambda: model.train_on_batch(ids, targets), arrays)


def tokens(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return token ids (B, T), and which are real: all, or in a padded case an eighth to seven eighths of an item."""
    ids = np.random.default_rng(0).integers(1, VOCABULARY, (case.batch, case.length))
    lengths = np.full(case.batch, case.length)
    if case.padded:
        lengths = np.linspace(case.length / 8, case.length * 7 / 8, case.batch).astype(int)
    real = np.arange(case.length) < lengths[:, None]
    return (ids * real).astype("int32"), real


def decoder(case: Case, attention: type[layers.Layer]) -> keras.Model:
    """Build a model like GPT-2: pre-norm, causal, with logits of the next token."""
    ids, x, width = _embed(case)
    for _ in range(MODEL_LAYERS):
        normed = layers.LayerNormalization()(x)
        attend = attention(case.heads, case.head_dim, dropout=DROPOUT)
        attended = attend(normed, normed, use_causal_mask=True)
        x = layers.Add()([x, layers.Dropout(DROPOUT)(attended)])
        x = layers.Add()([x, _feed_forward(layers.LayerNormalization()(x), width)])
    x = layers.LayerNormalization()(x)
    return keras.Model(ids, layers.Dense(VOCABULARY, use_bias=False)(x))


def encoder(case: Case, attention: type[layers.Layer]) -> keras.Model:
    """Build a model like BERT: post-norm, and id 0 is padding.

    Each layer gets the mask as an argument, as in KerasHub, because stock Keras loses an implicit mask on the way.
    """
    ids, x, width = _embed(case)
    mask = keras.ops.not_equal(ids, 0)[:, None] if case.padded else None
    for _ in range(MODEL_LAYERS):
        attend = attention(case.heads, case.head_dim, dropout=DROPOUT)
        attended = attend(x, x, attention_mask=mask)
        attended = layers.Dropout(DROPOUT)(attended)
        x = layers.LayerNormalization()(layers.Add()([x, attended]))
        x = layers.LayerNormalization()(layers.Add()([x, _feed_forward(x, width)]))
    return keras.Model(ids, x)


def _embed(case: Case) -> tuple[Any, Any, int]:
    """Return token ids, their embeddings, and the width."""
    width = case.heads * case.head_dim
    ids = keras.Input((case.length,), dtype="int32")
    x = layers.Embedding(VOCABULARY, width)(ids)
    return ids, layers.Dropout(DROPOUT)(Positions()(x)), width


def _feed_forward(x: Any, width: int) -> Any:
    x = layers.Dense(4 * width, activation="gelu")(x)
    return layers.Dropout(DROPOUT)(layers.Dense(width)(x))
