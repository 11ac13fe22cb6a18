"""Whole models and their `.keras` files: Keras' multi-head layers become heed's, and back."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import heed
from heed.layers import MultiHeadAttention, from_keras, replace_attention
from tests.backend import BACKEND
from tests.layers.stock import HAS_WINDOW, randoms

STOCK = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
WINDOW = {"sliding_window": 3} if HAS_WINDOW else {}
VALUE_DIM = 4 if BACKEND == "jax" else 3  # there Keras fails unless it is `key_dim`


def stock_model() -> keras.Model:
    """Return self-attention, grouped cross-attention from a nested model, and masks from an embedding."""
    keras.utils.set_random_seed(3)
    ids, others = keras.Input((None,), dtype="int32"), keras.Input((None, 6))
    x = keras.layers.Embedding(9, 8, mask_zero=True)(ids)
    first = keras.layers.MultiHeadAttention(2, 4, value_dim=VALUE_DIM, name="first", **WINDOW)
    x = keras.layers.LayerNormalization()(x + first(x, x, use_causal_mask=True))
    inner = keras.Input((None, 6))
    nested = keras.Model(inner, keras.layers.Dense(8)(inner), name="nested")
    grouped = keras.layers.GroupQueryAttention(4, 4, 2, use_bias=False, name="grouped")
    y = nested(others)
    return keras.Model([ids, others], grouped(x, y, y))


def inputs() -> list[np.ndarray]:
    ids = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 1, 2]], "int32")
    return [ids, *randoms((2, 7, 6))]


def kinds(model: keras.Model) -> dict[str, type]:
    return {name: type(model.get_layer(name)) for name in ("first", "grouped")}


def test_a_file_of_keras_becomes_one_of_heed_and_back(tmp_path: Path) -> None:
    stock = stock_model()
    x = inputs()
    stock.compile(keras.optimizers.Adam(0.01), "mse", run_eagerly=True)
    target = np.zeros((2, 5, 8), "float32")
    stock.train_on_batch(x, target)
    stock.save(tmp_path / "stock.keras")
    expected = stock.predict(x, verbose=0)

    ours = replace_attention(keras.saving.load_model(tmp_path / "stock.keras"))
    assert kinds(ours) == dict.fromkeys(("first", "grouped"), MultiHeadAttention)
    np.testing.assert_allclose(ours.predict(x, verbose=0), expected, atol=1e-5)
    ours.save(tmp_path / "ours.keras")

    back = replace_attention(keras.saving.load_model(tmp_path / "ours.keras"), by="keras")
    assert tuple(kinds(back).values()) == STOCK
    for name in kinds(back):
        assert back.get_layer(name).get_config() == stock.get_layer(name).get_config()
    back.save(tmp_path / "back.keras")
    with zipfile.ZipFile(tmp_path / "back.keras") as archive:
        assert "heed" not in json.dumps(json.loads(archive.read("config.json")))
    again = keras.saving.load_model(tmp_path / "back.keras")
    np.testing.assert_allclose(again.predict(x, verbose=0), expected, atol=1e-6)
    # Optimizers remember their first step: the next one is the same for all.
    for model in (stock, ours, again):
        model.train_on_batch(x, target)
    for one, two, three in zip(*(m.get_weights() for m in (stock, ours, again)), strict=True):
        np.testing.assert_allclose(two, one, atol=1e-5)
        np.testing.assert_allclose(three, one, atol=1e-6)


def test_models_within_models_and_sequential_ones() -> None:
    x = keras.Input((None, 8))
    block = keras.Model(x, keras.layers.MultiHeadAttention(2, 4)(x, x), name="block")
    model = keras.Sequential([keras.Input((None, 8)), block, keras.layers.Dense(3)])
    ours = replace_attention(model)
    assert isinstance(ours.get_layer("block").layers[1], MultiHeadAttention)
    arrays = randoms((2, 5, 8))
    np.testing.assert_allclose(ours(arrays[0]), model(arrays[0]), atol=1e-5)
    assert isinstance(model.get_layer("block").layers[1], keras.layers.MultiHeadAttention)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"soft_cap": 3.0}, "soft_cap"),
        ({"position": "rotary", "sinks": True}, "position, sinks"),
        ({"num_key_value_heads": 1, "value_dim": 3}, "value_dim"),
    ],
)
def test_what_keras_cannot_do_does_not_go_back(options: Any, message: str) -> None:
    x = keras.Input((None, 8))
    layer = heed.layers.MultiHeadAttention(2, 4, name="attention", **options)
    with pytest.raises(ValueError, match=f"must not use options.*'attention' with {message}$"):
        replace_attention(keras.Model(x, layer(x, x)), by="keras")


def test_refusals() -> None:
    x = keras.Input((None, 8))
    model = keras.Model(x, keras.layers.Dense(3)(x), name="plain")
    with pytest.raises(ValueError, match=r"multi-head.*of Keras.*'plain'"):
        replace_attention(model)
    with pytest.raises(ValueError, match=r"`by` must be .*by='torch'"):
        replace_attention(model, by="torch")
    with pytest.raises(ValueError, match="an attention by hand calls `heed"):
        replace_attention(model)


def put(part: str, name: str, value: Any) -> Callable[[Any], None]:
    """Set an attribute of a part of a layer, or of the layer if the part is empty."""
    return lambda layer: setattr(getattr(layer, part) if part else layer, name, value)


class Other(keras.layers.Layer):
    def call(self, x: Any, **_: Any) -> Any:
        return x


class Own(keras.layers.MultiHeadAttention):
    def _masked_softmax(self, attention_scores: Any, attention_mask: Any = None) -> Any:
        return attention_scores


# A change of a built layer with dropout, and the reason for which it is refused.
CHANGES: list[tuple[Callable[[Any], None], str]] = [
    (put("", "_compute_attention", lambda *_: None), "first has its own `_compute_attention`"),
    (put("", "__class__", Own), "Own overrides `_masked_softmax`"),
    (put("", "_softmax", Other()), "a `_softmax` of its own, Other"),
    (put("_softmax", "activity_regularizer", max), "a `_softmax` of its own, Softmax"),
    (put("_softmax", "axis", 1), "a `_softmax` over other axes, 1"),
    (put("", "_dropout_layer", Other()), "a `_dropout_layer` of its own, Other"),
    (put("_dropout_layer", "rate", 0.5), "a `_dropout_layer` of another rate, 0.5"),
    (put("", "_inverse_sqrt_key_dim", 0.3), "a scale of its own"),
    (put("", "_combine_equation", "abc,abc->abc"), "equations of its own"),
    (put("", "_query_dense", Other()), "a `_query_dense` of its own, Other"),
    (put("", "_value_dense", None), "no `_value_dense`"),
    (put("_output_dense", "activation", keras.ops.tanh), "its own `activation`, tanh"),
    (put("_key_dense", "activity_regularizer", keras.regularizers.L2()), "`activity_regularizer`"),
]


@pytest.mark.parametrize(("change", "reason"), CHANGES, ids=[reason for _, reason in CHANGES])
def test_layers_that_differ_from_their_config(change: Any, reason: str) -> None:
    x = keras.Input((5, 8))
    layer = keras.layers.MultiHeadAttention(2, 4, dropout=0.1, name="first")
    model = keras.Model(x, layer(x, x))
    layer._tracker.locked = False
    change(layer)
    with pytest.raises(ValueError, match=f"`layer` must compute.*layer=first: .*{reason}"):
        from_keras(layer)
    if type(layer) is keras.layers.MultiHeadAttention:  # the copy keeps a layer of another class
        text = f"`heed.accelerate\\(model\\)` leaves such a layer.*layer 'first': .*{reason}"
        with pytest.raises(ValueError, match=text):
            replace_attention(model)


def test_unbuilt_layers_that_differ_from_their_config() -> None:
    layer = keras.layers.GroupQueryAttention(4, 4, 2, name="grouped")
    assert isinstance(from_keras(layer), MultiHeadAttention)
    layer._inverse_sqrt_head_dim = 0.3
    with pytest.raises(ValueError, match="layer=grouped: a scale of its own"):
        from_keras(layer)


def test_frozen_projections_stay_frozen() -> None:
    layer = keras.layers.MultiHeadAttention(2, 4)
    layer.build((1, 5, 8), (1, 5, 8))
    layer._key_dense.trainable = False
    frozen = [w.name for w in from_keras(layer).non_trainable_weights]
    assert len(frozen) == len(layer.non_trainable_weights) == 2
