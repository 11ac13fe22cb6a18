"""The same model made of stock Keras layers, as in the tutorials, trained by `train_on_batch`."""

from __future__ import annotations

from typing import Any

from keras import layers

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _training
from benchmarks.peers._model import Positions
from benchmarks.peers._training_keras import prepare_training


def prepare(case: Case) -> Prepared:
    """Three layers of encoder and decoder."""
    return prepare_training(case, embed, encoder, decoder)


def embed(ids: Any, width: int) -> Any:
    return Positions()(layers.Embedding(_training.VOCABULARY, width)(ids))


def encoder(x: Any, case: Case) -> Any:
    return _feed_forward(_attend(x, None, case))


def decoder(x: Any, encoded: Any, case: Case) -> Any:
    x = _attend(x, None, case, use_causal_mask=True)
    return _feed_forward(_attend(x, encoded, case))


def _attend(x: Any, value: Any, case: Case, **arguments: Any) -> Any:
    """Pre-norm attention, as on all sides; `value` is None for self-attention."""
    query = layers.LayerNormalization()(x)
    attention = layers.MultiHeadAttention(case.heads, case.head_dim, dropout=_training.DROPOUT)
    attended = attention(query, query if value is None else value, **arguments)
    return layers.Add()([x, layers.Dropout(_training.DROPOUT)(attended)])


def _feed_forward(x: Any) -> Any:
    width = x.shape[-1]
    hidden = layers.Dense(4 * width, activation="relu")(layers.LayerNormalization()(x))
    hidden = layers.Dropout(_training.DROPOUT)(layers.Dense(width)(hidden))
    return layers.Add()([x, hidden])
