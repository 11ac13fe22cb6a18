"""Shared by the sides that decode texts: the sizes of their models, and the source texts."""

from __future__ import annotations

import keras
import numpy as np

from benchmarks.cases import Case
from heed import models

VOCABULARY, LAYERS = 8000, 3
# Lower ids are padding, start, end and unknown, in each side's own order.
FIRST_WORD = 4
# Added to the scores of special tokens, so that no side ends early.
NEVER = -1e4


def sources(case: Case) -> np.ndarray:
    """Token ids (B, S), none of them padding."""
    rng = np.random.default_rng(0)
    shape = (case.batch, case.key_length)
    return rng.integers(FIRST_WORD, VOCABULARY, shape).astype("int32")


def model(case: Case) -> models.Transformer:
    """Return a heed model with fixed random weights, which never ends a text early."""
    keras.utils.set_random_seed(0)
    width = case.heads * case.head_dim
    config = models.TransformerConfig(
        VOCABULARY,
        VOCABULARY,
        width=width,
        num_heads=case.heads,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        feed_forward_width=4 * width,
        tie_embeddings=False,
    )
    made = models.Transformer(config)
    made.build()
    made.decoder.output_layer.bias.assign(np.where(np.arange(VOCABULARY) < FIRST_WORD, NEVER, 0.0))
    return made


def to_comparable(case: Case, tokens: np.ndarray) -> np.ndarray:
    """Return the array that sides must agree on: the tokens, or only their number if weights are rounded."""
    return tokens if case.weights == "float32" else np.sign(tokens)
