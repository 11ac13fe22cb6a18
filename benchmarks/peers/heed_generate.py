"""`heed.models.generate` with a `heed.models.Transformer`, greedily."""

from __future__ import annotations

import keras
import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _generate, _tensorflow
from heed import models

_tensorflow.set_threads()


def prepare(case: Case) -> Prepared:
    """Weights are random, so the end hardly ever comes before the last token."""
    keras.utils.set_random_seed(0)
    width = case.heads * case.head_dim
    config = models.TransformerConfig(
        _generate.VOCABULARY,
        _generate.VOCABULARY,
        width=width,
        num_heads=case.heads,
        encoder_layers=_generate.LAYERS,
        decoder_layers=_generate.LAYERS,
        feed_forward_width=4 * width,
    )
    model, sources = models.Transformer(config), _generate.sources(case)
    return Prepared(
        lambda: models.generate(model, sources, max_length=case.length),
        lambda tokens: [np.asarray(tokens, np.float32)],
    )
