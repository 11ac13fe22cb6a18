"""Accelerating one model: heed is on while one of its layers is called, and off in between."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from heed.acceleration import _switch

# The models for which `accelerate` was called.
accelerated: weakref.WeakSet[Any] = weakref.WeakSet()
# The programs that Keras and KerasHub keep of a model, which were traced without or with heed.
_TRACED = ("train_function", "test_function", "predict_function", "generate_function")


def wrap(model: Any) -> None:
    """Turns heed on inside the model's layers."""
    for layer in model._flatten_layers():
        if "call" not in vars(layer):
            layer.call = _scoped(layer.call)
    accelerated.add(model)
    _trace_anew(model)


def unwrap(model: Any) -> None:
    """Undoes `wrap`, but for layers that belong to another accelerated model too."""
    accelerated.discard(model)
    others = {id(layer) for other in accelerated for layer in other._flatten_layers()}
    for layer in model._flatten_layers():
        if hasattr(vars(layer).get("call"), "_heed_scope") and id(layer) not in others:
            del layer.call
    _trace_anew(model)


def _scoped(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        with _switch.inside():
            return call(*args, **kwargs)

    scoped._heed_scope = True  # type: ignore[attr-defined]
    return scoped


def _trace_anew(model: Any) -> None:
    for name in _TRACED:
        if getattr(model, name, None) is not None:
            setattr(model, name, None)
