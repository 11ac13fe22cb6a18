"""T5's layer on heed without KerasHub; slow tests of test_hub.py compare with the real one."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import heed
from heed.acceleration.hub import _t5
from tests import reference
from tests.layers.stock import assert_close, randoms


@pytest.fixture(autouse=True)
def _accelerated() -> Iterator[None]:
    with heed.accelerate():
        yield


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
    first, joined, _ = call(layer(bias), x, mask=mask)
    x[0, 4] = np.nan  # masked positions are not read
    after, handed_on, _ = call(layer(), x, position_bias=joined)
    assert handed_on is joined
    assert_close(first, expected)
    for i, valid in enumerate((4, 5)):
        assert_close(np.asarray(after)[i, :valid], expected[i, :valid])
    np.testing.assert_array_equal(np.asarray(after)[0, 2], 0.0)
