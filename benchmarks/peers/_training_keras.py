"""What the sides that train with Keras' own `train_on_batch` share."""

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


def prepared(
    case: Case,
    embedded: Callable[[Any, int], Any],
    encoder: Callable[[Any, Case], Any],
    decoder: Callable[[Any, Any, Case], Any],
) -> Prepared:
    """A Functional model of a side's parts, compiled with Adam, and one step of it on one batch.

    Args:
        case: says which model.
        embedded: makes vectors of token ids, of so many features.
        encoder: one layer.
        decoder: one layer; it is given the encoded source too.
    """
    keras.utils.set_random_seed(0)
    width = case.heads * case.head_dim
    given = [keras.Input((n,), dtype="int32") for n in (case.key_length, case.length)]
    encoded, x = (layers.Dropout(_training.DROPOUT)(embedded(ids, width)) for ids in given)
    for _ in range(_training.LAYERS):
        encoded = encoder(encoded, case)
    encoded = layers.LayerNormalization()(encoded)
    for _ in range(_training.LAYERS):
        x = decoder(x, encoded, case)
    logits = layers.Dense(_training.VOCABULARY)(layers.LayerNormalization()(x))
    model = keras.Model(given, logits)
    model.compile(
        # A rate of 0 makes each step of the same work, from weights that stay as they are.
        keras.optimizers.Adam(0.0, global_clipnorm=_training.CLIP_NORM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=bool(os.environ.get(COMPILED)),
    )
    model.optimizer.build(model.trainable_variables)  # its state is not part of a step
    source, target = _training.batch(case)
    inputs = [source, _training.shifted(target)]
    return Prepared(
        lambda: model.train_on_batch(inputs, target), lambda loss: [np.asarray(loss, np.float32)]
    )
