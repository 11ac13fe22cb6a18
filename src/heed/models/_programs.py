"""Compiled programs of a model, kept for the next call: as few as possible, and none that is out of date."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import keras

from heed.models._stack import Stack
from heed.ops.backends import current
from heed.ops.dispatch import choice

# A model keeps as many, those that ran last.
_MOST = 8

Function = Callable[[Any, dict[str, Any], dict[str, Any]], Any]


@dataclass
class _Programs:
    """The programs of one model, the one that ran last at the end."""

    state: tuple[Any, ...] = ()
    by_key: dict[Hashable, Callable[[Any], Any]] = field(default_factory=dict)


_lock = threading.Lock()
_kept: weakref.WeakKeyDictionary[Any, _Programs] = weakref.WeakKeyDictionary()


def program(
    model: Any, options: dict[str, Any], function: Function, quick: bool = False
) -> Callable[[Any], Any]:
    """A function of a model with these options as a compiled function of the inputs alone, made on first use.

    Args:
        model: it must be built.
        options: all that the function depends on, but for the model and its inputs.
        function: of the model, inputs and options; a function of a module.
        quick: whether it is quick without being compiled: then that waits for its second use.
    """
    key = (function, choice(), *options.items())
    with _lock:
        programs = _kept.setdefault(model, _Programs())
        state = _state(model)
        if programs.state != state:  # none of them will ever be right again
            programs.by_key.clear()
            programs.state = state
        compiled = programs.by_key.pop(key, None)
        if compiled is None:
            # Held by a weak reference only, or what is kept here would keep every model alive.
            reference = weakref.ref(model)
            compile_ = current().compiled_when_repeated if quick else current().compiled
            compiled = compile_(lambda inputs: function(reference(), inputs, options))
        programs.by_key[key] = compiled
        if len(programs.by_key) > _MOST:
            del programs.by_key[next(iter(programs.by_key))]
        return compiled


def _state(model: Any) -> tuple[Any, ...]:
    """What a program has taken from a model when it was traced: not the variables' values, but which they are.

    LoRA and quantisation change variables, or what a layer does with them; a policy changes dtypes.
    """
    # A layer that has been put in the place of another one in `blocks` is none that Keras tells of.
    stacks = [getattr(model, name, None) for name in ("encoder", "decoder")]
    parts = [model, *(block for x in stacks if isinstance(x, Stack) for block in x.blocks)]
    variables = tuple((_Same(x), str(x.dtype)) for part in parts for x in part.variables)
    parts = [part for part in parts if isinstance(part, keras.layers.Layer)]
    layers = tuple(
        (
            layer.dtype_policy.name,
            getattr(layer, "quantization_mode", None),
            getattr(layer, "lora_enabled", False),
        )
        for part in parts
        for layer in part._flatten_layers()
    )
    return variables, layers


class _Same:
    """A weak reference that is equal to others of the very same object; variables compare by their values."""

    def __init__(self, x: Any) -> None:
        self._reference = weakref.ref(x)

    def __eq__(self, other: object) -> bool:
        x = self._reference()
        return isinstance(other, _Same) and x is not None and x is other._reference()

    __hash__ = None  # type: ignore[assignment]
