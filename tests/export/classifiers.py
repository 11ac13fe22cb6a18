"""Classifiers of tokens with attention and recurrent layers, whose exports are compared with them."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from heed import layers

L = keras.layers
WORDS, WIDTH = 40, 16


def with_weights(model: Any) -> Any:
    """Randomise all weights of the model, biases and norms included."""
    rng = np.random.default_rng(1)
    for weight in model.weights:
        if "float" in str(weight.dtype):
            drawn = rng.normal(size=weight.shape) * 0.3
            weight.assign(np.abs(drawn) + 0.1 if "variance" in weight.name else drawn)
    return model


def classifier(attend: Callable[[Any], Any], pool: bool = True) -> keras.Model:
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = attend(L.Embedding(WORDS, WIDTH, mask_zero=True)(ids))
    x = L.LayerNormalization()(x)
    x = L.GlobalAveragePooling1D()(x) if pool else x
    return with_weights(keras.Model(ids, L.Dense(3, activation="softmax")(x)))


def both_ways(x: Any) -> Any:
    states = L.Bidirectional(L.LSTM(WIDTH // 2, return_sequences=True))(x)
    return layers.AdditiveAttention(8)(states, states)


CLASSIFIERS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "padded": (lambda x: layers.MultiHeadAttention(4, 4)(x, x), 1),
    "causal": (lambda x: layers.MultiHeadAttention(4, 4)(x, x, use_causal_mask=True), 1),
    "grouped": (
        lambda x: layers.MultiHeadAttention(4, 4, num_key_value_heads=2, value_dim=6)(x, x),
        1,
    ),
    "one head": (lambda x: layers.LuongAttention()(x, x), 1),
    "two layers": (
        lambda x: layers.TransformerEncoderLayer(2, 32)(layers.TransformerEncoderLayer(4, 32)(x)),
        2,
    ),
    "additive": (lambda x: layers.AdditiveAttention(8)(x, x), 0),
    "BiLSTM": (both_ways, 0),
    "GRU": (lambda x: L.GRU(WIDTH, return_sequences=True)(x), 0),
    "Keras": (lambda x: L.MultiHeadAttention(2, 8)(x, x, use_causal_mask=True), 0),
}
