"""Layers with a function of their scores: by name, as a function, as a layer with weights; saved, and with a cache."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from heed import Mask
from heed.decoding.engine import unsupported_reasons
from heed.layers import (
    AdditiveAttention,
    DotProductAttention,
    MultiHeadAttention,
    TransformerEncoderLayer,
)
from heed.models import LanguageModel, LanguageModelConfig

X = np.random.default_rng(0).normal(size=(2, 6, 16)).astype("float32")


@keras.saving.register_keras_serializable(package="test_score_functions")
class Temperature(keras.layers.Layer):
    """A learned temperature for each head."""

    def build(self, _: Any = None) -> None:
        self.log = self.add_weight(shape=(4,), initializer="zeros", name="log")

    def call(self, score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return score * ops.exp(self.log[head])


@keras.saving.register_keras_serializable(package="test_score_functions")
def near(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return score - 0.3 * ops.abs(query - key)


MULTI_HEAD = functools.partial(MultiHeadAttention, 4, 4)
ADDITIVE = functools.partial(AdditiveAttention, 8)


def to_numpy(x: Any) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(ops.stop_gradient(x)))


@pytest.mark.parametrize(
    ("make", "function", "weights"),
    [
        (MULTI_HEAD, near, 8),
        (MULTI_HEAD, "test_score_functions>near", 8),
        (MULTI_HEAD, Temperature(), 9),
        (MULTI_HEAD, "test_score_functions>Temperature", 9),
        (DotProductAttention, Temperature(), 1),
        (ADDITIVE, "test_score_functions>Temperature", 5),
    ],
    ids=["function", "name of a function", "layer", "name of a layer", "one head", "additive"],
)
def test_a_model_is_saved_with_its_function(
    make: Any, function: Any, weights: int, tmp_path: Path
) -> None:
    inputs = keras.Input((6, 16))
    output = make(score_mod=function)(inputs, inputs)
    model = keras.Model(inputs, output)
    for x in model.weights:
        x.assign(np.random.default_rng(1).normal(size=x.shape))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert len(again.weights) == weights
    np.testing.assert_allclose(to_numpy(again(X)), to_numpy(model(X)), atol=1e-5)


def test_a_layer_with_a_function_is_the_layer_with_its_bias() -> None:
    layer = MultiHeadAttention(4, 4, score_mod=near, num_key_value_heads=2, sinks=True)
    output, scores = layer(X, X, return_attention_scores=True)
    distance = np.float32(-0.3 * abs(np.arange(6)[:, None] - np.arange(6)))[None, None]
    plain = MultiHeadAttention(4, 4, num_key_value_heads=2, sinks=True)
    plain.build(X.shape, X.shape)
    plain.set_weights(layer.get_weights())
    wanted = plain(X, X, position_bias=distance, return_attention_scores=True)
    for x, y in zip((output, scores), wanted, strict=True):
        np.testing.assert_allclose(to_numpy(x), to_numpy(y), atol=2e-6, rtol=1e-5)
    single = DotProductAttention(score_mod=near)(
        X, X, attention_mask=Mask.where(lambda b, h, q, k: k <= q)
    )
    assert single.shape == X.shape


def test_additive_attention_takes_a_function() -> None:
    layer, plain = ADDITIVE(score_mod=near), ADDITIVE()
    _, scores = layer(X, X, return_attention_scores=True)
    plain.build(X.shape, X.shape)
    plain.set_weights(layer.get_weights())
    _, wanted = plain(X, X, return_attention_scores=True)
    wanted = to_numpy(wanted) * np.exp(-0.3 * abs(np.arange(6)[:, None] - np.arange(6)))
    wanted /= wanted.sum(-1, keepdims=True)
    np.testing.assert_allclose(to_numpy(scores), wanted, atol=2e-6, rtol=1e-5)


def test_with_a_cache_queries_keep_their_positions() -> None:
    layer = MultiHeadAttention(4, 4, score_mod=near)
    whole = to_numpy(layer(X, X, use_causal_mask=True))
    cache = layer.make_cache(2, 6)
    for index in range(6):
        step, cache = layer(
            X[:, index : index + 1], X[:, index : index + 1], cache=cache, cache_index=index
        )
        np.testing.assert_allclose(to_numpy(step)[:, 0], whole[:, index], atol=2e-6, rtol=1e-5)


def test_each_layer_of_a_model_has_weights_of_its_own() -> None:
    config = LanguageModelConfig(
        vocabulary_size=20, layers=2, width=16, num_heads=4, score_mod=Temperature
    )
    assert config.to_dict()["score_mod"] == "test_score_functions>Temperature"
    model = LanguageModel(config)
    model(np.array([[3, 4, 5]]))
    temperatures = [x for x in model.trainable_variables if x.name == "log"]
    assert len({id(x) for x in temperatures}) == 2
    options = {"method": "greedy", "use_cache": True, "beam_size": 1, "coverage_penalty": 0}
    reasons = "; ".join(unsupported_reasons(model, options))
    assert "score_mod='test_score_functions>Temperature', a function of Python" in reasons
    block = TransformerEncoderLayer(4, 32, score_mod=Temperature())
    again = TransformerEncoderLayer.from_config(block.get_config())
    again(X)
    assert len(again.weights) == 17


@pytest.mark.parametrize("bad", [3, "nobody>registered"])
def test_other_values_are_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="`score_mod` must be a function"):
        MultiHeadAttention(4, 4, score_mod=bad)
