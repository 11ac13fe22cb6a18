"""KerasHub's GPT-2 with four layers, which continues texts greedily, for its stock and its accelerated side."""

from __future__ import annotations

import keras
import keras_hub
import numpy as np

import heed
from benchmarks.cases import Case
from benchmarks.peers import Prepared, _generate, _tensorflow

LAYERS = 4
_tensorflow.set_threads()


def prepare(case: Case, accelerated: bool) -> Prepared:
    """Decode all T tokens after the S of each prompt, because there is no end token."""
    keras.utils.set_random_seed(0)
    width, longest = case.heads * case.head_dim, case.key_length + case.length
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=_generate.VOCABULARY,
        num_layers=LAYERS,
        num_heads=case.heads,
        hidden_dim=width,
        intermediate_dim=4 * width,
        max_sequence_length=longest,
    )
    model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    model.compile(sampler="greedy")
    known = np.arange(longest)[None].repeat(case.batch, 0) < case.key_length
    tokens = np.zeros(known.shape, "int32")
    tokens[:, : case.key_length] = _generate.sources(case)
    if accelerated:
        heed.accelerate(model)
    return Prepared(
        lambda: model.generate({"token_ids": tokens, "padding_mask": known}, stop_token_ids=None),
        lambda written: [np.asarray(written["token_ids"], np.float32)[:, case.key_length :]],
    )
