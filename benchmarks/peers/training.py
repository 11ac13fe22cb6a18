"""A training step of KerasHub's layers by Keras' own `train_on_batch`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers
from keras_hub import layers as hub

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _training


def keras_hub(case: Case, xla: bool = False) -> Prepared:
    """Compile a pre-norm encoder-decoder model with Adam, for a training step on one batch."""
    keras.utils.set_random_seed(0)
    width = case.heads * case.head_dim
    options: dict[str, Any] = {
        "intermediate_dim": 4 * width,
        "num_heads": case.heads,
        "dropout": _training.DROPOUT,
        "normalize_first": True,
    }
    tokens = [keras.Input((n,), dtype="int32") for n in (case.key_length, case.length)]
    encoded, x = (
        layers.Dropout(_training.DROPOUT)(
            hub.TokenAndPositionEmbedding(_training.VOCABULARY, ids.shape[1], width)(ids)
        )
        for ids in tokens
    )
    for _ in range(_training.LAYERS):
        encoded = hub.TransformerEncoder(**options)(encoded)
    encoded = layers.LayerNormalization()(encoded)
    for _ in range(_training.LAYERS):
        x = hub.TransformerDecoder(**options)(x, encoded)
    logits = layers.Dense(_training.VOCABULARY)(layers.LayerNormalization()(x))
    model = keras.Model(tokens, logits)
    model.compile(
        # At a learning rate of 0 the weights stay the same, and so does the work of each step.
        keras.optimizers.Adam(0.0, global_clipnorm=_training.CLIP_NORM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=xla,
    )
    model.optimizer.build(model.trainable_variables)  # its state is not part of a step
    source, target = _training.batch(case)
    # The decoder reads the start token, then the target without its last token.
    start = np.full_like(target[:, :1], _training.START)
    inputs = [source, np.concatenate([start, target[:, :-1]], axis=1)]
    return Prepared(
        lambda: model.train_on_batch(inputs, target), lambda loss: [np.asarray(loss, np.float32)]
    )
