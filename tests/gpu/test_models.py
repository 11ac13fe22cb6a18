"""`heed.accelerate` on a GPU: Keras' layers and op give what they give without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import heed
from tests.gpu.device import needs_device, to_device, to_host
from tests.slow import slow

pytestmark = needs_device

B, T, D = 2, 48, 64


def _multi_head() -> Callable[[Any], Any]:
    layer = keras.layers.MultiHeadAttention(4, 16)
    padding = to_device(np.arange(T)[None, None] < np.array([T, T // 2])[:, None, None])
    return lambda x: layer(x, x, attention_mask=padding)


def _causal() -> Callable[[Any], Any]:
    layer = keras.layers.MultiHeadAttention(4, 16)
    return lambda x: layer(x, x, use_causal_mask=True)


def _grouped() -> Callable[[Any], Any]:
    layer = keras.layers.GroupQueryAttention(16, 4, 2)
    return lambda x: layer(x, x, use_causal_mask=True)


def _op() -> Callable[[Any], Any]:
    visible = to_device(np.tri(T, dtype=bool)[None, None])

    def attend(x: Any) -> Any:
        heads = keras.ops.reshape(x, (B, T, 4, D // 4))
        return keras.ops.dot_product_attention(heads, heads, heads, mask=visible)

    return attend


@pytest.mark.parametrize("make", [_multi_head, _grouped, *slow([_causal, _op])])
def test_accelerated_is_stock(make: Callable[[], Callable[[Any], Any]]) -> None:
    x = to_device(np.random.default_rng(0).normal(size=(B, T, D)).astype("float32"))
    attend = make()
    stock = to_host(attend(x))
    with heed.accelerate() as acceleration:
        fast = to_host(attend(x))
        report = acceleration.report()
    print(report)
    assert report.calls or report.left_to_keras
    # On JAX the stock layers multiply in tf32.
    np.testing.assert_allclose(fast, stock, atol=5e-3, rtol=5e-3)


def test_heeds_own_layers_and_models_run() -> None:
    """Each tensor that they make is where the model is."""
    layer = heed.layers.MultiHeadAttention(4, 16, dropout=0.2)
    x = to_device(np.random.default_rng(0).normal(size=(B, T, D)).astype("float32"))
    padding = to_device(np.arange(T) < np.array([[T], [T // 2]]))
    for options in (
        {"key_mask": padding, "use_causal_mask": True},
        {"attention_mask": heed.Mask.segments(np.zeros((B, T), "int32")), "training": True},
    ):
        assert np.isfinite(to_host(layer(x, x, **options))).all()
    config = heed.models.LanguageModelConfig(
        20, layers=1, width=32, num_heads=2, sliding_window=8, soft_cap=5.0, position="rotary"
    )
    model = heed.models.LanguageModel(config)
    tokens = np.random.default_rng(0).integers(3, 20, (B, 12)).astype("int32")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert np.isfinite(model.train_on_batch(tokens, tokens))
    found = heed.models.generate(model, prompt=tokens[:, :4], max_length=9)
    assert to_host(found).shape[0] == B
