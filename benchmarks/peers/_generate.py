"""What the sides that write texts share: the sizes of their models, and the texts that they start from."""

from __future__ import annotations

import keras
import numpy as np

from benchmarks.cases import Case
from heed import models

VOCABULARY, LAYERS = 8000, 3
# Below it are padding, start, end and unknown, whatever a side counts them as.
FIRST_WORD = 4
# Added to the scores of these: no side ever chooses one, so all write as many tokens.
NEVER = -1e4


def sources(case: Case) -> np.ndarray:
    """Token ids (B, S), none of them padding."""
    rng = np.random.default_rng(0)
    shape = (case.batch, case.key_length)
    return rng.integers(FIRST_WORD, VOCABULARY, shape).astype("int32")


def model(case: Case) -> models.Transformer:
    """A heed model of random weights, always the same, which writes to the full length."""
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


def compared(case: Case, tokens: np.ndarray) -> np.ndarray:
    """What sides have to agree on: tokens; how many alone, where each side rounds weights its own way."""
    return tokens if case.weights == "float32" else np.sign(tokens)
