"""A training step of `heed.models.Transformer` as in `heed train`, with determinism."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _training, find_in, texts
from heed.seq2seq import TrainingOptions


def prepare(case: Case) -> Prepared:
    """Train at a learning rate of 0: the weights stay the same, and so does the work of each step."""
    tf.config.experimental.enable_op_determinism()
    model = texts.make_model(case, dropout=_training.DROPOUT, attention_dropout=_training.DROPOUT)
    options = TrainingOptions(clip_norm=_training.CLIP_NORM)
    make_step = find_in(
        "TrainingStep", "seq2seq.training._step", "seq2seq.training.step", "seq2seq.training_step"
    )
    step = make_step(model, options, tf.distribute.get_strategy(), one_shape=True)
    batch = find_in("Batch", "seq2seq.tasks.task", "seq2seq.task")(*_training.batch(case))
    return Prepared(lambda: step(batch, 0, 0.0).numpy(), lambda loss: [np.asarray(loss)])
