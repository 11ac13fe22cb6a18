"""A training step by Keras' own `train_on_batch`: of stock Keras layers, as in the tutorials, and of KerasHub's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras as package
import numpy as np
from keras import layers

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _tensorflow, _training
from benchmarks.peers.models import Positions

_tensorflow.set_threads()


def _prepare(
    case: Case,
    xla: bool,
    embed: Callable[[Any, int], Any],
    encoder: Callable[[Any, Case], Any],
    decoder: Callable[[Any, Any, Case], Any],
) -> Prepared:
    """Build a Functional model of a side's parts, compiled with Adam, for a training step on one batch.

    Args:
        case: the case.
        xla: whether to compile it with XLA.
        embed: maps token ids and a width to vectors.
        encoder: applies an encoder layer.
        decoder: applies a decoder layer to a target and the encoded source.
    """
    package.utils.set_random_seed(0)
    width = case.heads * case.head_dim
    tokens = [package.Input((n,), dtype="int32") for n in (case.key_length, case.length)]
    encoded, x = (layers.Dropout(_training.DROPOUT)(embed(ids, width)) for ids in tokens)
    for _ in range(_training.LAYERS):
        encoded = encoder(encoded, case)
    encoded = layers.LayerNormalization()(encoded)
    for _ in range(_training.LAYERS):
        x = decoder(x, encoded, case)
    logits = layers.Dense(_training.VOCABULARY)(layers.LayerNormalization()(x))
    model = package.Model(tokens, logits)
    model.compile(
        # At a learning rate of 0 the weights stay the same, and so does the work of each step.
        package.optimizers.Adam(0.0, global_clipnorm=_training.CLIP_NORM),
        package.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=xla,
    )
    model.optimizer.build(model.trainable_variables)  # its state is not part of a step
    source, target = _training.batch(case)
    inputs = [source, _training.shift(target)]
    return Prepared(
        lambda: model.train_on_batch(inputs, target), lambda loss: [np.asarray(loss, np.float32)]
    )


def keras(case: Case, xla: bool = False) -> Prepared:
    """Train a model of Keras' layers."""
    return _prepare(case, xla, _embed, _encoder, _decoder)


def _embed(ids: Any, width: int) -> Any:
    return Positions()(layers.Embedding(_training.VOCABULARY, width)(ids))


def _encoder(x: Any, case: Case) -> Any:
    return _feed_forward(_attend(x, None, case))


def _decoder(x: Any, encoded: Any, case: Case) -> Any:
    x = _attend(x, None, case, use_causal_mask=True)
    return _feed_forward(_attend(x, encoded, case))


def _attend(x: Any, value: Any, case: Case, **arguments: Any) -> Any:
    """Return pre-norm attention, as on all sides; `value` is None for self-attention."""
    query = layers.LayerNormalization()(x)
    attention = layers.MultiHeadAttention(case.heads, case.head_dim, dropout=_training.DROPOUT)
    attended = attention(query, query if value is None else value, **arguments)
    return layers.Add()([x, layers.Dropout(_training.DROPOUT)(attended)])


def _feed_forward(x: Any) -> Any:
    width = x.shape[-1]
    hidden = layers.Dense(4 * width, activation="relu")(layers.LayerNormalization()(x))
    hidden = layers.Dropout(_training.DROPOUT)(layers.Dense(width)(hidden))
    return layers.Add()([x, hidden])


def keras_hub(case: Case, xla: bool = False) -> Prepared:
    """Train a model of KerasHub's layers."""
    from keras_hub import layers as hub

    def options(x: Any) -> dict[str, Any]:
        return {
            "intermediate_dim": 4 * x.shape[-1],
            "num_heads": case.heads,
            "dropout": _training.DROPOUT,
            "normalize_first": True,
        }

    return _prepare(
        case,
        xla,
        lambda ids, width: hub.TokenAndPositionEmbedding(_training.VOCABULARY, ids.shape[1], width)(
            ids
        ),
        lambda x, _: hub.TransformerEncoder(**options(x))(x),
        lambda x, encoded, _: hub.TransformerDecoder(**options(x))(x, encoded),
    )
