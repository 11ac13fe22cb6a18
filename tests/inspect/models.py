"""Small models of every kind that `capture` supports, and their expected weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from heed import layers as heed_layers
from tests import reference
from tests.layers.stock import randomise
from tests.models.builders import small_model, sources
from tests.tolerances import to_numpy

B, T, S, D = 2, 6, 4, 8


def sequence(length: int = T, seed: int = 0, batch: int = B) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(batch, length, D)).astype("float32")


@functools.cache
def chain() -> keras.Model:
    """Return Keras' four layers, one with dropout, which takes another path, and one that is called twice."""
    x = keras.Input((T, D))
    y = keras.layers.MultiHeadAttention(2, 4, name="fused")(x, x)
    y = keras.layers.MultiHeadAttention(2, 4, dropout=0.3, name="dropping")(
        y, y, use_causal_mask=True
    )
    grouped = keras.layers.GroupQueryAttention(4, 4, 2, name="grouped")
    y = grouped(grouped(y, y, use_causal_mask=True), x)
    y = keras.layers.Attention(name="dot", score_mode="dot")([y, x])
    y = keras.layers.AdditiveAttention(name="additive")([y, y], use_causal_mask=True)
    model = keras.Model(x, y)
    randomise(model)
    return model


CHAIN = ["fused", "dropping", "grouped", "grouped_1", "dot", "additive"]


class Subclassed(keras.Model):
    """Nested layers: a Sequential inside, and layers in a list."""

    def __init__(self) -> None:
        super().__init__(name="subclassed")
        block = [keras.layers.Dense(D, name="widen"), SelfAttention(name="inner")]
        self.blocks = [keras.Sequential(block, name="first"), SelfAttention(name="second")]

    def call(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


class SelfAttention(keras.layers.Layer):
    """A layer that contains one of Keras."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.attention = keras.layers.MultiHeadAttention(2, 4, name="attention")

    def build(self, shape: Any) -> None:
        self.attention.build(shape, shape)

    def call(self, x: Any) -> Any:
        return self.attention(x, x)


class OwnSoftmax(keras.layers.Layer):
    """A user-defined attention, written with keras.ops."""

    def call(self, x: Any) -> Any:
        scores = keras.ops.matmul(x, keras.ops.transpose(x, (0, 2, 1)))
        return keras.ops.matmul(keras.ops.softmax(scores), x)


class OwnSoftmaxAttention(OwnSoftmax):
    """The same with "Attention" in its name."""


def crossed(layer: Any, other: str = "value") -> tuple[Any, Any, dict[str, Any]]:
    """Return a layer that reads another sequence, with its arguments."""
    return layer, sequence(), {other: sequence(S, 1)}


MODELS: dict[str, Callable[[], tuple[Any, Any, dict[str, Any]]]] = {
    "keras layers": lambda: (chain(), sequence(), {}),
    "subclassed": lambda: (Subclassed(), sequence(), {}),
    "own": lambda: (OwnSoftmaxAttention(name="own"), sequence(), {}),
    "heed MultiHeadAttention": lambda: (
        heed_layers.MultiHeadAttention(4, 4, num_key_value_heads=2, sinks=True, name="multi"),
        sequence(),
        {"value": sequence(), "use_causal_mask": True},
    ),
    "heed DotProductAttention": lambda: crossed(heed_layers.DotProductAttention(name="dot")),
    "heed AdditiveAttention": lambda: crossed(heed_layers.AdditiveAttention(5, name="additive")),
    "heed LuongAttention": lambda: crossed(heed_layers.LuongAttention("general", name="luong")),
    "heed encoder layer": lambda: (
        heed_layers.TransformerEncoderLayer(2, 16, activation="gelu", name="encoder"),
        sequence(),
        {},
    ),
    "heed decoder layer": lambda: crossed(
        heed_layers.TransformerDecoderLayer(2, 16, name="decoder"), "encoded"
    ),
    "heed Transformer": lambda: (
        small_model(activation="gelu"),
        {"source": sources(B, S), "target": sources(B, T, seed=1, vocabulary=9)},
        {},
    ),
}


def arrays(outputs: Any) -> list[np.ndarray]:
    return [to_numpy(x) for x in keras.tree.flatten(outputs)]


def projected(dense: Any, x: np.ndarray) -> np.ndarray:
    """Return (B, T, N, H) in float64, by the weights of a layer's projection."""
    kernel, bias = (np.asarray(w, np.float64) for w in (dense.kernel, dense.bias))
    return np.einsum("btd,dnh->btnh", x.astype(np.float64), kernel) + bias


def expected(layer: Any, x: np.ndarray, y: np.ndarray, **options: Any) -> np.ndarray:
    """Return the reference weights of a multi-head attention of heed or Keras."""
    query, key = projected(layer._query_dense, x), projected(layer._key_dense, y)
    return reference.dot_product_attention(query, key, key, **options).probabilities


def attended(layer: Any, x: np.ndarray, y: np.ndarray, **options: Any) -> np.ndarray:
    """Return the reference output of a multi-head attention of heed or Keras."""
    dense = (layer._query_dense, layer._key_dense, layer._value_dense)
    tensors = (projected(one, z) for one, z in zip(dense, (x, y, y), strict=True))
    heads = reference.dot_product_attention(*tensors, **options).out
    kernel, bias = (np.asarray(w, np.float64) for w in layer._output_dense.get_weights())
    return np.einsum("btnv,nvd->btd", heads, kernel) + bias
