"""How often the native kernels run for Keras' layers, KerasHub's models and heed's own: counted where TensorFlow runs ops.

A result alone does not tell who computed it. `.ci/canary` runs this file on the nightly build of Keras.
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
    """Counts the eager runs of heed's ops, and of TensorFlow's softmax, which stock attention needs."""
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
# A call of Keras with its inputs, and the kernel that has to run once for it.
CALLS: dict[str, tuple[Callable[[], Callable[[], Any]], str]] = {
    "op": (
        lambda: lambda: keras.ops.dot_product_attention(HEADS, HEADS, HEADS, mask=MASK),
        "HeedAttention",
    ),
    "op with flash attention and a soft-cap": (
        lambda: (
            lambda: keras.ops.dot_product_attention(
                HEADS, HEADS, HEADS, flash_attention=True, attn_logits_soft_cap=9.0
            )
        ),
        "HeedAttention",
    ),
    "MultiHeadAttention": (
        lambda: _of(keras.layers.MultiHeadAttention(2, 4), attention_mask=MASK),
        "HeedAttention",
    ),
    "its method for subclasses": (
        lambda: _projected(keras.layers.MultiHeadAttention(2, 4)),
        "HeedAttention",
    ),
    "GroupQueryAttention": (
        lambda: _of(keras.layers.GroupQueryAttention(4, 2, 1), use_causal_mask=True),
        "HeedAttention",
    ),
    "Attention": (lambda: _of_list(keras.layers.Attention()), "HeedAttention"),
    "AdditiveAttention": (lambda: _of_list(keras.layers.AdditiveAttention()), "HeedAdditive"),
}


def _of(layer: Any, **options: Any) -> Callable[[], Any]:
    layer.build(X.shape, X.shape)
    return lambda: layer(X, X, **options)


def _projected(layer: Any) -> Callable[[], Any]:
    layer.build(X.shape, X.shape)
    return lambda: layer._compute_attention(HEADS, HEADS, HEADS, MASK[None, None])[0]


def _of_list(layer: Any) -> Callable[[], Any]:
    layer.build([X.shape, X.shape])
    return lambda: layer([X, X], use_causal_mask=True)


@pytest.mark.parametrize("name", list(CALLS))
def test_each_call_of_keras_runs_a_kernel(name: str) -> None:
    make, kernel = CALLS[name]
    call = make()
    heed.accelerate()
    with kernel_calls() as calls:
        fast = call()
    assert calls == {kernel: 1}
    heed.decelerate()
    if "soft-cap" in name:  # which stock Keras refuses
        return
    with kernel_calls() as calls:
        stock = call()
    assert calls == {"Softmax": 1}
    assert_close(fast, stock)
