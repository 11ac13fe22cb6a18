"""KerasHub's GPT-2 with four layers on Keras' backend, which continues texts greedily, stock and accelerated."""

from __future__ import annotations

from typing import Any

import keras
import keras_hub
import numpy as np

import heed
from benchmarks.cases import Case
from benchmarks.peers import Prepared

VOCABULARY, LAYERS = 8000, 4


def backbone_of(heads: int, width: int, longest: int) -> Any:
    """Return KerasHub's GPT-2 with fixed random weights, for `longest` tokens."""
    keras.utils.set_random_seed(0)
    return keras_hub.models.GPT2Backbone(
        vocabulary_size=VOCABULARY,
        num_layers=LAYERS,
        num_heads=heads,
        hidden_dim=width,
        intermediate_dim=4 * width,
        max_sequence_length=longest,
    )


def stock(case: Case, with_heed: bool = False) -> Prepared:
    """Continue prompts of S tokens by T, because there is no end token."""
    longest = case.key_length + case.length
    backbone = backbone_of(case.heads, case.heads * case.head_dim, longest)
    model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    model.compile(sampler="greedy")
    known = np.arange(longest)[None].repeat(case.batch, 0) < case.key_length
    tokens = np.zeros(known.shape, "int32")
    shape = (case.batch, case.key_length)
    tokens[:, : case.key_length] = np.random.default_rng(0).integers(4, VOCABULARY, shape)
    if with_heed:
        heed.accelerate(model)

    def arrays(written: Any) -> list[np.ndarray]:
        tokens = keras.ops.convert_to_numpy(written["token_ids"])
        return [tokens.astype(np.float32)[:, case.key_length :]]

    inputs = {"token_ids": tokens, "padding_mask": known}
    return Prepared(lambda: model.generate(inputs, stop_token_ids=None), arrays)


def accelerated(case: Case) -> Prepared:
    """Do as `stock`, accelerated."""
    return stock(case, with_heed=True)
