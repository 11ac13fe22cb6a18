"""The same model made of KerasHub's layers, trained by `train_on_batch`."""

from __future__ import annotations

from typing import Any

from keras_hub import layers

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _training
from benchmarks.peers._training_keras import prepare_training


def prepare(case: Case) -> Prepared:
    """Three layers of encoder and decoder."""
    return prepare_training(case, embed, encoder, decoder)


def embed(ids: Any, width: int) -> Any:
    return layers.TokenAndPositionEmbedding(_training.VOCABULARY, ids.shape[1], width)(ids)


def encoder(x: Any, case: Case) -> Any:
    return layers.TransformerEncoder(**_options(x, case))(x)


def decoder(x: Any, encoded: Any, case: Case) -> Any:
    return layers.TransformerDecoder(**_options(x, case))(x, encoded)


def _options(x: Any, case: Case) -> dict[str, Any]:
    return {
        "intermediate_dim": 4 * x.shape[-1],
        "num_heads": case.heads,
        "dropout": _training.DROPOUT,
        "normalize_first": True,
    }
