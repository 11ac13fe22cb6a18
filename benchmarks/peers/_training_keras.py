"""Shared by the sides that train with Keras' own `train_on_batch`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers

from benchmarks.cases import Case
from benchmarks.peers import COMPILED, Prepared, _tensorflow, _training

_tensorflow.set_threads()


def prepare_training(
    case: Case,
    embed: Callable[[Any, int], Any],
    encoder: Callable[[Any, Case], Any],
    decoder: Callable[[Any, Any, Case], Any],
) -> Prepared:
    """Build a Functional model of a side's parts, compiled with Adam, for a training step on one batch.

    Args:
        case: the case.
        embed: maps token ids and a width to vectors.
        encoder: applies an encoder layer.
        decoder: applies a decoder layer to a target and the encoded source.
    """
    keras.utils.set_random_seed(0)
    width = case.heads * case.head_dim
    tokens = [keras.Input((n,), dtype="int32") for n in (case.key_length, case.length)]
    encoded, x = (layers.Dropout(_training.DROPOUT)(embed(ids, width)) for ids in tokens)
    for _ in range(_training.LAYERS):
        encoded = encoder(encoded, case)
    encoded = layers.LayerNormalization()(encoded)
    for _ in range(_training.LAYERS):
        x = decoder(x, encoded, case)
    logits = layers.Dense(_training.VOCABULARY)(layers.LayerNormalization()(x))
    model = keras.Model(tokens, logits)
    model.compile(
        # At a learning rate of 0 the weights stay the same, and so does the work of each step.
        keras.optimizers.Adam(0.0, global_clipnorm=_training.CLIP_NORM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=bool(os.environ.get(COMPILED)),
    )
    model.optimizer.build(model.trainable_variables)  # its state is not part of a step
    source, target = _training.batch(case)
    inputs = [source, _training.shift(target)]
    return Prepared(
        lambda: model.train_on_batch(inputs, target), lambda loss: [np.asarray(loss, np.float32)]
    )
