"""The same model of stock Keras layers, as the tutorials write it, and `train_on_batch`."""

from __future__ import annotations

from typing import Any

from keras import layers

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _training
from benchmarks.peers._model import Positions
from benchmarks.peers._training_keras import prepared


def prepare(case: Case) -> Prepared:
    """Three layers of encoder and decoder."""
    return prepared(case, embedded, encoder, decoder)


def embedded(ids: Any, width: int) -> Any:
    return Positions()(layers.Embedding(_training.VOCABULARY, width)(ids))


def encoder(x: Any, case: Case) -> Any:
    return _fed_forward(_attended(x, None, case))


def decoder(x: Any, encoded: Any, case: Case) -> Any:
    x = _attended(x, None, case, use_causal_mask=True)
    return _fed_forward(_attended(x, encoded, case))


def _attended(x: Any, value: Any, case: Case, **arguments: Any) -> Any:
    """Normalised before, as all sides are; `value` is None for self-attention."""
    query = layers.LayerNormalization()(x)
    attention = layers.MultiHeadAttention(case.heads, case.head_dim, dropout=_training.DROPOUT)
    attended = attention(query, query if value is None else value, **arguments)
    return layers.Add()([x, layers.Dropout(_training.DROPOUT)(attended)])


def _fed_forward(x: Any) -> Any:
    width = x.shape[-1]
    hidden = layers.Dense(4 * width, activation="relu")(layers.LayerNormalization()(x))
    hidden = layers.Dropout(_training.DROPOUT)(layers.Dense(width)(hidden))
    return layers.Add()([x, hidden])
