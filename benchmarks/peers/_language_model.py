"""Shared by the sides with a language model: its sizes, its random weights, and the prompts that it continues."""

from __future__ import annotations

import keras
import numpy as np

from benchmarks.cases import Case
from heed import models

VOCABULARY, LAYERS, FEED_FORWARD = 32000, 24, 2816  # 349M parameters at a width of 1,024
START = 1
# Lower ids are padding, start and end.
FIRST_WORD = 3


def prompts(case: Case) -> np.ndarray:
    """Token ids (B, S - 1): after the start token, a prompt has S tokens."""
    shape = (case.batch, case.key_length - 1)
    return np.random.default_rng(0).integers(FIRST_WORD, VOCABULARY, shape).astype("int32")


def model(case: Case) -> models.LanguageModel:
    """Return a heed model of Llama's form with fixed random weights."""
    keras.utils.set_random_seed(0)
    config = models.LanguageModelConfig(
        VOCABULARY,
        width=case.heads * case.head_dim,
        num_heads=case.heads,
        num_key_value_heads=case.key_head_count,
        layers=LAYERS,
        feed_forward_width=FEED_FORWARD,
        activation="silu",
        gated=True,
        normalization="rms",
        use_bias=False,
        tie_embeddings=False,
    )
    made = models.LanguageModel(config)
    made.build()
    # No text may end early. llama.cpp has no bias here, so the logits of special tokens are made 0.
    output = made.decoder.output_layer.kernel
    output.assign(np.array(output) * (np.arange(VOCABULARY) >= FIRST_WORD))
    return made
