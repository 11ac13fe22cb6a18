"""A training step of `heed.models.Transformer` as in `heed train`, with determinism."""

from __future__ import annotations

import importlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _tensorflow, _training
from heed.models import Transformer, TransformerConfig
from heed.seq2seq import TrainingOptions

_tensorflow.set_threads()


def _find(name: str, *modules: str) -> Any:
    """Return what an older heed, of another interpreter, has elsewhere."""
    for module in modules:
        try:
            return getattr(importlib.import_module(f"heed.seq2seq.{module}"), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"this heed has no {name} in {', '.join(modules)}")


def prepare(case: Case) -> Prepared:
    """At a learning rate of 0 the weights stay the same, and so does the work of each step."""
    keras.utils.set_random_seed(0)
    tf.config.experimental.enable_op_determinism()
    width = case.heads * case.head_dim
    config = TransformerConfig(
        _training.VOCABULARY,
        _training.VOCABULARY,
        width=width,
        num_heads=case.heads,
        encoder_layers=_training.LAYERS,
        decoder_layers=_training.LAYERS,
        feed_forward_width=4 * width,
        dropout=_training.DROPOUT,
        attention_dropout=_training.DROPOUT,
        tie_embeddings=False,
    )
    model = Transformer(config)
    model.build()
    options = TrainingOptions(clip_norm=_training.CLIP_NORM)
    make_step = _find("TrainingStep", "training._step", "training.step", "training_step")
    step = make_step(model, options, tf.distribute.get_strategy(), one_shape=True)
    batch = _find("Batch", "tasks.task", "task")(*_training.batch(case))
    return Prepared(lambda: step(batch, 0, 0.0).numpy(), lambda loss: [np.asarray(loss)])
