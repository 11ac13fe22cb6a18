"""Compiled programs of a model, kept for the next call: as few as possible, and none that is out of date."""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import keras

from heed.ops.dispatch import choice

# A model keeps as many, those that ran last.
_MOST = 8

Function = Callable[[Any, dict[str, Any], dict[str, Any]], Any]


class Program(keras.Model):
    """A function of a model, inputs and fixed options as a model itself: Keras compiles its `predict_on_batch`.

    It knows the model by a weak reference only, or what is kept below would keep every model alive.
    """

    def __init__(self, model: Any, options: dict[str, Any], function: Function) -> None:
        # Float32 whatever the global policy is: inputs that are numbers must not be narrowed.
        super().__init__(name="program", dtype="float32")
        self._model_reference = weakref.ref(model)
        self._options = tuple(options.items())
        self._function = function
        self.compile(jit_compile=False)

    def call(self, inputs: dict[str, Any]) -> Any:
        """The function of the inputs."""
        model = self._model_reference()
        if model is None:
            raise RuntimeError("The model of this program has been deleted.")
        return self._function(model, inputs, dict(self._options))


class _Programs:
    """The programs of one model, the one that ran last at the end."""

    def __init__(self) -> None:
        self.state: tuple[Any, ...] = ()
        self.by_key: collections.OrderedDict[Hashable, Program] = collections.OrderedDict()


_lock = threading.Lock()
_kept: weakref.WeakKeyDictionary[Any, _Programs] = weakref.WeakKeyDictionary()


def compiled(model: Any, options: dict[str, Any], function: Function) -> Program:
    """The compiled function of a model with these options, made on first use.

    Args:
        model: it must be built.
        options: all that the function depends on, but for the model and its inputs.
        function: of the model, inputs and options; a function of a module.
    """
    key = (function, choice(), *options.items())
    with _lock:
        programs = _kept.setdefault(model, _Programs())
        state = _state(model)
        if programs.state != state:  # none of them will ever be right again
            programs.by_key.clear()
            programs.state = state
        program = programs.by_key.get(key)
        if program is None:
            program = programs.by_key[key] = Program(model, options, function)
        programs.by_key.move_to_end(key)
        while len(programs.by_key) > _MOST:
            programs.by_key.popitem(last=False)
    return program


def _state(model: Any) -> tuple[Any, ...]:
    """What a program has taken from a model when it was traced: not the variables' values, but which they are.

    LoRA and quantisation change variables, or what a layer does with them; a policy changes dtypes.
    """
    variables = tuple((_Same(x), str(x.dtype)) for x in model.variables)
    layers = tuple(
        (
            layer.dtype_policy.name,
            getattr(layer, "quantization_mode", None),
            getattr(layer, "lora_enabled", False),
        )
        for layer in model._flatten_layers()
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
