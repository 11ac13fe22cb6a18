"""Counts runs of the native kernels for layers and models of Keras, KerasHub and heed.

The ops are counted where TensorFlow runs them, because a result does not show who computed it. `.ci/canary` runs this
file on the nightly build of Keras.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import pytest
from tensorflow.python.framework import op_callbacks

import heed
from heed.ops.core.decoder import PackedDecoder
from tests.layers.stock import assert_close, randoms

pytestmark = pytest.mark.skipif(
    heed.info()["implementation"] != "native", reason="no native kernels"
)


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    yield
    heed.decelerate()


@contextmanager
def kernel_calls() -> Iterator[Counter[str]]:
    """Count the eager runs of heed's ops, and of TensorFlow's softmax, which stock attention needs."""
    calls: Counter[str] = Counter()

    def count(op_type: Any, *_: Any, **__: Any) -> None:
        name = op_type.decode() if isinstance(op_type, bytes) else op_type
        if name.startswith("Heed") or name == "Softmax":
            calls[name] += 1

    op_callbacks.add_op_callback(count)
    try:
        yield calls
    finally:
        op_callbacks.remove_op_callback(count)


X = randoms((2, 5, 8))[0]
HEADS = randoms((2, 5, 2, 4))[0]
MASK = np.tri(5, dtype=bool)


def _op(**options: Any) -> Any:
    return keras.ops.dot_product_attention(HEADS, HEADS, HEADS, **options)


def _of(layer: Any, **options: Any) -> Callable[[], Any]:
    layer.build(X.shape, X.shape)
    return lambda: layer(X, X, **options)


def _projected(layer: Any) -> Callable[[], Any]:
    layer.build(X.shape, X.shape)
    return lambda: layer._compute_attention(HEADS, HEADS, HEADS, MASK[None, None])[0]


def _of_list(layer: Any) -> Callable[[], Any]:
    layer.build([X.shape, X.shape])
    return lambda: layer([X, X], use_causal_mask=True)


# Calls of Keras, for each of which a kernel must run once.
CALLS: dict[str, Callable[[], Callable[[], Any]]] = {
    "op": lambda: lambda: _op(mask=MASK),
    "op with flash attention and a soft-cap": lambda: (
        lambda: _op(flash_attention=True, attn_logits_soft_cap=9.0)
    ),
    "MultiHeadAttention": lambda: _of(keras.layers.MultiHeadAttention(2, 4), attention_mask=MASK),
    "its method for subclasses": lambda: _projected(keras.layers.MultiHeadAttention(2, 4)),
    "GroupQueryAttention": lambda: _of(
        keras.layers.GroupQueryAttention(4, 2, 1), use_causal_mask=True
    ),
    "Attention": lambda: _of_list(keras.layers.Attention()),
    "AdditiveAttention": lambda: _of_list(keras.layers.AdditiveAttention()),
}


@pytest.mark.parametrize("name", list(CALLS))
def test_each_call_of_keras_runs_a_kernel(name: str) -> None:
    call = CALLS[name]()
    heed.accelerate()
    with kernel_calls() as calls:
        fast = call()
    assert calls == {"HeedAttention": 1}
    heed.decelerate()
    if "soft-cap" in name:  # which stock Keras rejects
        return
    with kernel_calls() as calls:
        stock = call()
    assert calls == {"Softmax": 1}
    assert_close(fast, stock)


def test_training_runs_forward_and_backward() -> None:
    import tensorflow as tf

    layer = keras.layers.MultiHeadAttention(2, 4, dropout=0.1)
    layer.build(X.shape, X.shape)
    with heed.accelerate(), kernel_calls() as calls:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(X, X, use_causal_mask=True, training=True) ** 2)
        tape.gradient(loss, [w.value for w in layer.trainable_variables])
    assert calls == {"HeedAttention": 1, "HeedAttentionGradient": 1}


def test_layers_of_heed_run_a_kernel_each() -> None:
    layers = heed.layers
    attention = layers.MultiHeadAttention(2, 4, num_key_value_heads=1, position="rotary")
    additive = layers.AdditiveAttention(4)
    block = layers.TransformerDecoderLayer(2, 16)
    for _ in range(2):  # the first builds
        with kernel_calls() as calls:
            attention(X, X, use_causal_mask=True)
            additive(X, X)
            block(X, X)
    assert {name: n for name, n in calls.items() if "Normal" not in name} == {
        "HeedAttention": 4,
    }


def test_generation_of_heed_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    decode = PackedDecoder.decode
    monkeypatch.setattr(
        PackedDecoder, "decode", lambda *given: (calls.append(given), decode(*given))[1]
    )
    config = heed.models.TransformerConfig(9, 9, width=8, num_heads=2, feed_forward_width=8)
    model = heed.models.Transformer(config)
    model.build()
    source = np.array([[3, 4, 5, 0]])
    found = {}
    for implementation in ("native", "portable"):
        with heed.set_implementation(implementation), eagerly():
            found[implementation] = np.array(heed.models.generate(model, source, max_length=5))
        assert len(calls) == 1  # the first one is native
    np.testing.assert_array_equal(*found.values())


def test_generation_of_keras_hub_runs_kernels_for_each_token() -> None:
    hub = pytest.importorskip("keras_hub", exc_type=ImportError)
    words, length, layers, prompt = 20, 9, 2, 4
    keras.utils.set_random_seed(3)

    class Own(hub.models.GPT2CausalLM):  # type: ignore[misc]
        """Left to the loop of the sampler."""

    model = Own(
        hub.models.GPT2Backbone(words, layers, 2, 8, 16, dropout=0.0, max_sequence_length=length),
        preprocessor=None,
    )
    model.compile(sampler="greedy", run_eagerly=True)
    known = np.arange(length)[None] < prompt
    inputs = {"token_ids": np.where(known, 7, 0).astype("int32"), "padding_mask": known}
    stock = model.generate(dict(inputs), stop_token_ids=None)["token_ids"]
    with heed.accelerate() as acceleration, kernel_calls() as calls:
        fast = model.generate(dict(inputs), stop_token_ids=None)["token_ids"]
        patched = acceleration.report().patched
    np.testing.assert_array_equal(fast, stock)
    assert not any("stays as it is" in line for line in patched)
    steps = length - prompt
    assert dict(calls) == {
        "HeedAttention": layers * (1 + steps),  # of the prompt, and of each token
        "HeedCacheWrite": (2 * layers + 1) * steps,  # keys, values, and the token
        # Query, key, value, output and two of the feed-forward network; and the logits.
        "HeedProduct": (6 * layers + 1) * steps,
        "Softmax": steps,  # of the sampler
    }


@contextmanager
def eagerly() -> Iterator[None]:
    """Run compiled functions eagerly, so that their ops are counted."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)
