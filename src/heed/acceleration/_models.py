"""Accelerating one model: heed is on while one of its layers is called, and off in between."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from heed.acceleration import _switch

_accelerated: weakref.WeakSet[Any] = weakref.WeakSet()
# The programs that Keras and KerasHub keep of a model, which were traced without or with heed.
_TRACED = ("train_function", "test_function", "predict_function", "generate_function")


def is_accelerated(model: Any) -> bool:
    """Whether `accelerate` was called for this model."""
    return model in _accelerated


def accelerated() -> list[Any]:
    """The models for which it was."""
    return list(_accelerated)


def wrap(model: Any) -> None:
    """Turns heed on inside the model's layers."""
    for layer in model._flatten_layers():
        if "call" not in vars(layer):
            layer.call = _scoped(layer.call)
    _accelerated.add(model)
    _trace_anew(model)


def unwrap(model: Any) -> None:
    """Undoes `wrap`, but for layers that belong to another accelerated model too."""
    _accelerated.discard(model)
    others = {id(layer) for other in _accelerated for layer in other._flatten_layers()}
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
