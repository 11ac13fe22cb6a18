"""T5's layer on heed without KerasHub; slow tests compare with the real one."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import heed
from heed.acceleration.hub import _t5
from tests import reference
from tests.layers.stock import assert_close, randoms


def layer(bias: Any = None) -> Any:
    """Return the attributes that the replacement reads, for two heads of width 3 and identity projections."""
    projections = ("query_projector", "key_projector", "value_projector", "output_projector")
    return SimpleNamespace(
        **dict.fromkeys(projections, keras.ops.convert_to_tensor),
        num_heads=2,
        key_value_dim=3,
        inner_dim=6,
        compute_dtype="float32",
        dropout_layer=keras.layers.Dropout(0.0),
        use_relative_attention_bias=bias is not None,
        compute_bias=lambda queries, keys, query_start_index: keras.ops.convert_to_tensor(bias),
    )


def stock(
    self: Any,
    hidden_states: Any,
    mask: Any = None,
    key_value_states: Any = None,
    position_bias: Any = None,
    cache: Any = None,
    cache_update_index: Any = None,
    training: bool = False,
) -> Any:
    raise ValueError("left to KerasHub")


call = _t5.call.make(stock)


class T5MultiHeadAttention(keras.layers.Layer):
    """Of a KerasHub that came after heed."""

    def call(
        self,
        hidden_states: Any,
        mask: Any = None,
        key_value_states: Any = None,
        position_bias: Any = None,
        cache: Any = None,
        cache_update_index: Any = None,
        training: bool = False,
    ) -> Any:
        return self.sinks + hidden_states


@pytest.mark.parametrize(
    ("function", "patched", "line"),
    [
        (stock, 1, "keras_hub.T5MultiHeadAttention.call"),
        (
            T5MultiHeadAttention.call,
            0,
            "keras_hub.T5MultiHeadAttention stays as it is: heed does not know sinks",
        ),
    ],
)
def test_a_layer_with_something_new_stays_as_it_is(
    function: Any, patched: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, module = ModuleType("keras_hub"), ModuleType("module")
    package.__file__ = __file__
    monkeypatch.setattr(T5MultiHeadAttention, "call", function)
    module.T5MultiHeadAttention = T5MultiHeadAttention  # type: ignore[attr-defined]
    patches, lines = _t5.layer_patches(module, package)
    assert (len(patches), lines) == (patched, [line])


def test_layers_after_the_first_have_its_bias_and_its_mask() -> None:
    x, bias = randoms((2, 5, 6), (1, 2, 5, 5))
    mask = np.arange(5) < np.array([[[4]], [[5]]])
    mask = np.repeat(mask, 5, 1)
    mask[0, 2] = False  # a query without keys
    heads = x.reshape(2, 5, 2, 3)
    expected = reference.dot_product_attention(
        heads, heads, heads, mask=mask[:, None], bias=bias, scale=1.0
    ).out.reshape(x.shape)
    with heed.accelerate():
        first, joined, _ = call(layer(bias), x, mask=mask)
        x[0, 4] = np.nan  # masked positions are not read
        after, handed_on, _ = call(layer(), x, position_bias=joined)
    assert handed_on is joined
    assert_close(first, expected)
    for i, valid in enumerate((4, 5)):
        assert_close(np.asarray(after)[i, :valid], expected[i, :valid])
    np.testing.assert_array_equal(np.asarray(after)[0, 2], 0.0)


def real_layer(**options: Any) -> Any:
    """Return a layer of KerasHub."""
    module = pytest.importorskip("keras_hub.src.models.t5.t5_multi_head_attention")
    layer = module.T5MultiHeadAttention(
        is_decoder=True,
        hidden_dim=8,
        key_value_dim=3,
        num_heads=2,
        **{"dropout": 0.0, **options},
    )
    layer(np.zeros((1, 1, 8), "float32"))
    rng = np.random.default_rng(0)
    layer.set_weights([rng.normal(size=w.shape) for w in layer.weights])
    return layer


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "masked": {"mask": np.tri(6, dtype=bool)[None].repeat(2, 0)},
    "cross": {"key_value_states": np.random.default_rng(1).normal(size=(2, 9, 8))},
    "bias": {"position_bias": np.random.default_rng(2).normal(size=(1, 2, 6, 6))},
    "read cache": {"cache": np.random.default_rng(3).normal(size=(2, 2, 9, 2, 3))},
    "write cache": {
        "cache": np.random.default_rng(3).normal(size=(2, 2, 9, 2, 3)),
        "cache_update_index": 2,
        "mask": np.tri(6, 9, 2, dtype=bool)[None].repeat(2, 0),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("name", list(CALLS))
def test_each_way_to_call_the_layer_of_t5(name: str, relative: bool) -> None:
    layer = real_layer(use_relative_attention_bias=relative)
    x = np.random.default_rng(4).normal(size=(2, 6, 8)).astype("float32")
    options = {
        key: value.astype("float32") if getattr(value, "dtype", None) == np.float64 else value
        for key, value in CALLS[name].items()
    }
    stock = layer(x, **options)
    with heed.accelerate() as acceleration:
        fast = layer(x, **options)
        # A later layer accepts the bias with or without the attached parts.
        later = {**options, "cache": None, "cache_update_index": None, "mask": None}
        if later.get("key_value_states") is None and fast[1].shape[-1] == 9:
            later["key_value_states"] = np.ones((2, 9, 8), "float32")
        biases = fast[1], np.array(fast[1])
        after, without = (layer(x, **{**later, "position_bias": bias})[0] for bias in biases)
        assert acceleration.report().calls == {"keras_hub.T5MultiHeadAttention": 3}
    for one, other in zip(fast, stock, strict=True):
        assert (one is None) is (other is None)
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    expected = layer(x, **{**later, "position_bias": stock[1]})[0]
    np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(without, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_dropout_in_t5() -> None:
    layer = real_layer(use_relative_attention_bias=False, dropout=0.5)
    x = np.random.default_rng(4).normal(size=(2, 6, 8)).astype("float32")
    with heed.accelerate() as acceleration:
        quiet = np.array(layer(x)[0])
        one, other = (np.array(layer(x, training=True)[0]) for _ in range(2))
        layer.dropout_layer.call = lambda inputs, training: inputs
        layer(x, training=True)
        reason = "keras_hub.T5MultiHeadAttention: a `dropout_layer` that is not Keras' own"
        assert acceleration.report().left_to_keras == {reason: 1}
    assert not np.allclose(one, quiet)
    assert not np.allclose(one, other)
