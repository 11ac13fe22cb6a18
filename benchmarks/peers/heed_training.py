"""A training step of `heed.models.Transformer` as in `heed train`, with determinism."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _tensorflow, _training, find_in
from heed.models import Transformer, TransformerConfig
from heed.seq2seq import TrainingOptions

_tensorflow.set_threads()


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
    make_step = find_in(
        "TrainingStep", "seq2seq.training._step", "seq2seq.training.step", "seq2seq.training_step"
    )
    step = make_step(model, options, tf.distribute.get_strategy(), one_shape=True)
    batch = find_in("Batch", "seq2seq.tasks.task", "seq2seq.task")(*_training.batch(case))
    return Prepared(lambda: step(batch, 0, 0.0).numpy(), lambda loss: [np.asarray(loss)])
