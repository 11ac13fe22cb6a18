"""Keras compiles models with XLA where it may; XLA cannot compile the native kernels, so there it must not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from keras.layers import Attention, GroupQueryAttention, MultiHeadAttention

from heed.acceleration import _models, _switch
from heed.ops._dispatch import implementation_in_use


def supports_jit(original: Callable[..., bool]) -> Callable[..., bool]:
    """Whether Keras may have XLA compile a model: also not while native kernels run its attention."""

    @functools.wraps(original)
    def accelerated(model: Any) -> bool:
        on = _switch.active() or _models.is_accelerated(model)
        native = on and implementation_in_use()[0] == "native"
        if native and any(_attends(layer.__class__) for layer in model._flatten_layers()):
            return False
        return original(model)

    return accelerated


@functools.cache
def _attends(cls: type) -> bool:
    """Whether a class of layers is one of Keras' that attend, or calls the op by its name."""
    if issubclass(cls, (Attention, GroupQueryAttention, MultiHeadAttention)):
        return True
    functions = (x for base in cls.__mro__ for x in vars(base).values())
    codes = (getattr(function, "__code__", None) for function in functions)
    return any(code is not None and "dot_product_attention" in code.co_names for code in codes)
