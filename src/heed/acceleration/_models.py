"""Acceleration of chosen models: heed is enabled while one of their layers is called."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import keras

from heed._patching import Function, Patch, Replacement
from heed.acceleration import _switch

# The models for which `accelerate` was called, and their layers.
accelerated: weakref.WeakSet[Any] = weakref.WeakSet()
_layers: weakref.WeakSet[Any] = weakref.WeakSet()
# The programs that Keras and KerasHub keep in a model, traced with or without heed.
_PROGRAMS = ("train_function", "test_function", "predict_function", "generate_function")


def is_enabled_for(model: Any) -> bool:
    """Whether this model is accelerated, alone or with all others."""
    return _switch.enabled_everywhere or model in accelerated


def add(model: Any) -> None:
    """Enables heed inside the layers of a model."""
    accelerated.add(model)
    _update(model)
    if not patch.installed:
        patch.install()


def remove(model: Any) -> None:
    """Disables heed inside the layers of a model, except those that another accelerated model has too."""
    accelerated.discard(model)
    _update(model)


def _update(model: Any) -> None:
    global _layers
    _layers = weakref.WeakSet(layer for each in accelerated for layer in each._flatten_layers())
    for name in _PROGRAMS:
        if getattr(model, name, None) is not None:
            setattr(model, name, None)  # Keras traces it again


def _make_call(original: Function) -> Function:
    @functools.wraps(original)
    def call(layer: Any, /, *args: Any, **kwargs: Any) -> Any:
        if layer not in _layers:
            return original(layer, *args, **kwargs)
        with _switch.enable_here():
            return original(layer, *args, **kwargs)

    return call


# It stays until nothing is accelerated any more.
patch = Patch(keras.layers.Layer, "__call__", Replacement(_make_call))
