"""Acceleration of chosen models: heed is enabled while one of their layers is called.

And programs: those that Keras traced before what is accelerated changed are traced again.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, NamedTuple

import keras

from heed.acceleration import switch
from heed.patching import Function, Patch, Replacement
from heed.weights import CACHES, WEIGHTS


class Formats(NamedTuple):
    """How the decoder engine keeps numbers of a language model."""

    weights: str = WEIGHTS[0]
    cache: str = CACHES[0]

    def __str__(self) -> str:
        """Return those that are not the default, in brackets, after a space."""
        named = zip(self, self._fields, Formats(), strict=True)
        chosen = [f"{value} {name}" for value, name, default in named if value != default]
        return f" ({', '.join(chosen)})" if chosen else ""


# The models for which `accelerate` was called.
accelerated: weakref.WeakSet[Any] = weakref.WeakSet()
# What `accelerate` got: of these models, and of all others.
_formats: weakref.WeakKeyDictionary[Any, Formats] = weakref.WeakKeyDictionary()
_formats_of_others = Formats()
# The programs that Keras keeps in a model, by the methods that make them.
_PROGRAMS = {f"make_{name}_function": f"{name}_function" for name in ("train", "test", "predict")}
# Of a model, the scope in which each of its programs was traced.
_traced: weakref.WeakKeyDictionary[Any, dict[str, object]] = weakref.WeakKeyDictionary()
_scope: object = None  # a new one for each change


def is_enabled_for(model: Any) -> bool:
    """Return whether this model is accelerated, alone or with all others."""
    return switch.enabled_everywhere or model in accelerated


def formats_of(model: Any) -> Formats:
    """Return the formats of a model; None stands for all that have none of their own."""
    return _formats_of_others if model is None else _formats.get(model, _formats_of_others)


def set_formats(model: Any, formats: Formats) -> None:
    """Set the formats of a model, or of all that have none of their own."""
    global _formats_of_others
    if model is None:
        _formats_of_others = formats
    else:
        _formats[model] = formats


def add(model: Any) -> None:
    """Enable heed inside the layers of a model."""
    accelerated.add(model)
    _update(model)
    for patch in layer_patches:
        if not patch.installed:
            patch.install()


def remove(model: Any) -> None:
    """Disable heed inside the layers of a model, except those that another accelerated model has too."""
    accelerated.discard(model)
    _formats.pop(model, None)
    _update(model)


def _update(model: Any) -> None:
    switch.layers = weakref.WeakSet(
        layer for each in accelerated for layer in each._flatten_layers()
    )
    _forget_programs(model, (*_PROGRAMS.values(), "generate_function"))


def change_scope() -> None:
    """Note that something else is accelerated from now on."""
    global _scope
    _scope = object()


def restore_programs() -> None:
    """Let Keras trace all programs again that may run on heed."""
    for model, programs in list(_traced.items()):
        _forget_programs(model, programs)
    _traced.clear()


def _forget_programs(model: Any, names: Any) -> None:
    for name in names:
        if getattr(model, name, None) is not None:
            setattr(model, name, None)  # Keras traces it again


def _enable(original: Function) -> Function:
    @functools.wraps(original)
    def call(layer: Any, /, *args: Any, **kwargs: Any) -> Any:
        if switch.is_enabled_here() or not switch.is_accelerated(layer):
            return original(layer, *args, **kwargs)
        with switch.enable_here():
            return original(layer, *args, **kwargs)

    return call


def _trace_again(name: str) -> Replacement:
    def make(original: Function) -> Function:
        @functools.wraps(original)
        def make_function(model: Any, force: bool = False) -> Any:
            programs = _traced.setdefault(model, {})
            force = force or programs.get(name, model) is not _scope
            programs[name] = _scope
            return original(model, force)

        return make_function

    return Replacement(make, ("self",), ("force",))


# For chosen models. JAX calls models by `stateless_call`. They stay until nothing is accelerated any more.
layer_patches = [
    Patch(keras.layers.Layer, name, Replacement(_enable)) for name in ("__call__", "stateless_call")
]
program_patches = [
    Patch(keras.Model, method, _trace_again(name)) for method, name in _PROGRAMS.items()
]


def patches() -> list[Patch]:
    """Return the patches that are installed."""
    return [patch for patch in (*layer_patches, *program_patches) if patch.installed]
