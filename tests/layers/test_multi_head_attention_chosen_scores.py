"""Scores of chosen heads and rows, of a layer that returns all of them on request."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from heed.layers import MultiHeadAttention, TransformerEncoderLayer
from tests.layers.stock import randomise, randoms
from tests.slow import slow

SHAPES = [(2, 6, 8), (2, 9, 8)]
WANTED: dict[str, tuple[Any, Any]] = {
    "heads": ([2, 0], np.index_exp[:, [2, 0]]),
    "one head": ((3,), np.index_exp[:, [3]]),
    "rows": ({"rows": [5, 1, 1]}, np.index_exp[:, :, [5, 1, 1]]),
    "both": ({"heads": [1, 3], "rows": [0]}, (slice(None), [[1], [3]], [0])),
    "heads by name": ({"heads": [1]}, np.index_exp[:, [1]]),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"num_key_value_heads": 2},
    "sinks": {"sinks": True},
    "relative": {"position": "relative", "sliding_window": 3},
}


def built(**options: Any) -> Any:
    layer = MultiHeadAttention(4, 6, **options)
    layer.build(*SHAPES)
    randomise(layer)
    return layer


@pytest.mark.parametrize(
    ("options", "name"),
    [
        *(("plain", name) for name in WANTED),
        *((options, "both") for options in OPTIONS if options != "plain"),
        *slow((x, y) for x in OPTIONS for y in WANTED if x != "plain" and y != "both"),
    ],
)
def test_they_are_those_of_all(options: str, name: str) -> None:
    layer, (wanted, index) = built(**OPTIONS[options]), WANTED[name]
    query, value = randoms(*SHAPES)
    mask = np.random.default_rng(0).random((2, 6, 9)) > 0.3
    arguments = {"attention_mask": mask}
    output, scores = layer(query, value, return_attention_scores=True, **arguments)
    again, chosen = layer(query, value, return_attention_scores=wanted, **arguments)
    np.testing.assert_array_equal(again, output)
    np.testing.assert_allclose(chosen, np.asarray(scores)[index], atol=1e-6)
    shape = layer.compute_output_shape(*SHAPES, return_attention_scores=wanted)[1]
    assert shape == tuple(chosen.shape)


@pytest.mark.parametrize("name", ["both", *slow(name for name in WANTED if name != "both")])
def test_in_a_functional_model_of_unknown_lengths(name: str, tmp_path: Any) -> None:
    layer, (wanted, index) = built(), WANTED[name]
    inputs = [keras.Input((None, 8)) for _ in SHAPES]
    outputs = layer(*inputs, return_attention_scores=wanted)
    model = keras.Model(inputs, outputs)
    arrays = randoms(*SHAPES)
    expected = np.asarray(layer(*arrays, return_attention_scores=True)[1])[index]
    heads, rows, keys = outputs[1].shape[1:]
    assert (heads, rows if rows is not None else 6) == expected.shape[1:3]
    assert keys is None
    np.testing.assert_allclose(model(arrays)[1], expected, atol=1e-6)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(arrays, verbose=0)[1], expected, atol=1e-6)


def test_heads_with_several_axes() -> None:
    x = randoms((2, 3, 4, 8))[0]
    layer = MultiHeadAttention(4, 6, attention_axes=(1, 2))
    whole = np.asarray(layer(x, x, return_attention_scores=True)[1])
    some = layer(x, x, return_attention_scores=[3, 1])[1]
    np.testing.assert_allclose(some, whole[:, [3, 1]], atol=1e-6)
    with pytest.raises(ValueError, match="rows for inputs of the shape"):
        layer(x, x, return_attention_scores={"rows": [0]})


def test_with_a_cache_and_inside_a_transformer_layer() -> None:
    layer = built()
    x = randoms(SHAPES[0])[0]
    whole = layer(x, x, use_causal_mask=True, return_attention_scores=True)[1]
    cache = layer.make_cache(2, 6)
    _, chosen, _ = layer(x, x, cache=cache, cache_index=0, return_attention_scores=[2])
    np.testing.assert_allclose(chosen, np.asarray(whole)[:, [2]], atol=1e-6)
    encoder = TransformerEncoderLayer(4, 12)
    whole = np.asarray(encoder(x, return_attention_scores=True)[1])
    np.testing.assert_allclose(encoder(x, return_attention_scores=[1])[1], whole[:, [1]], atol=1e-6)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ([4], r"must name heads from 0 to 3.*heads=\[4\]"),
        ([-1], r"must name heads from 0 to 3.*heads=\[-1\]"),
        ({"rows": [6]}, r"must name rows from 0 to 5.*rows=\[6\]"),
        ([], "must be a boolean, a sequence of heads.*=\\[\\]"),
        ([0.5], "must be a boolean, a sequence of heads"),
        ([True], "must be a boolean, a sequence of heads"),
        (1, "must be a boolean, a sequence of heads.*=1"),
        ("all", "must be a boolean, a sequence of heads.*='all'"),
        ({"keys": [1]}, "must be a boolean, a sequence of heads.*'keys'"),
        ({}, "must be a boolean, a sequence of heads"),
    ],
)
def test_what_there_is_not_is_refused(wanted: Any, message: str) -> None:
    arrays = randoms(*SHAPES)
    for x in (arrays, [keras.KerasTensor(shape) for shape in SHAPES]):
        with pytest.raises(ValueError, match=f"`return_attention_scores` {message}"):
            built()(*x, return_attention_scores=wanted)
