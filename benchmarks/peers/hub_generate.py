"""KerasHub's BART of the same sizes, decoding greedily with its own `generate` and its cache."""

from __future__ import annotations

import os

import keras
import keras_hub
import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import COMPILED, Prepared, _generate, _tensorflow

_tensorflow.set_threads()


def prepare(case: Case) -> Prepared:
    """Decode all tokens, because there is no end token."""
    keras.utils.set_random_seed(0)
    width, sources = case.heads * case.head_dim, _generate.sources(case)
    backbone = keras_hub.models.BartBackbone(
        vocabulary_size=_generate.VOCABULARY,
        num_layers=_generate.LAYERS,
        num_heads=case.heads,
        hidden_dim=width,
        intermediate_dim=4 * width,
        max_sequence_length=max(case.key_length, case.length + 1),
    )
    model = keras_hub.models.BartSeq2SeqLM(backbone, preprocessor=None)
    model.compile(sampler="greedy", jit_compile=bool(os.environ.get(COMPILED)))
    start = np.zeros((case.batch, case.length + 1), "int32")
    start[:, 0] = 1
    inputs = {
        "encoder_token_ids": sources,
        "encoder_padding_mask": np.ones_like(sources),
        "decoder_token_ids": start,
        "decoder_padding_mask": start,  # 1 for the only token
    }
    return Prepared(
        lambda: model.generate(inputs, stop_token_ids=None),
        lambda written: [np.asarray(written["decoder_token_ids"], np.float32)[:, 1:]],
    )
