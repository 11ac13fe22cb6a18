"""Finds the arrays that a function of a user captures, and recognises a function that is made anew.

A function is known by its code and by all that it reads: numbers, strings and containers of them by value, other
functions by their code in turn, arrays and tensors by their shape and dtype. What is read in another way (an
attribute of an object, a variable of another module) cannot be recognised: such a function is traced at each call.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from heed.ops.backends import current

# Packages whose functions and modules never change their meaning.
_CONSTANT = frozenset(
    "builtins keras math cmath operator functools itertools numpy jax jaxlib tensorflow torch heed".split()
)
_PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    np.generic,
    np.dtype,
    type(Ellipsis),
    slice,
)
_LAYER_ATTRIBUTES = frozenset(vars(keras.layers.Layer()))

# Makes a captured object again, with traced values in place of arrays.
Rebuild = Callable[[Sequence[Any]], Any]


class Captured(NamedTuple):
    """What a function captures."""

    key: Hashable | None  # equal for functions with the same trace; None if that cannot be told
    tensors: list[Any]  # the arrays, as tensors of the backend
    rebuild: Rebuild  # the function, made of other values for these arrays


def read(function: Any) -> Captured:
    """Return what a function, a layer or a partial function captures."""
    reader = _Reader()
    key, rebuild = reader.read(function)
    return Captured(key if reader.is_known else None, reader.tensors, rebuild)


def _as_is(x: Any) -> Rebuild:
    return lambda arrays: x


class _Reader:
    def __init__(self) -> None:
        self.tensors: list[Any] = []
        self.is_known = True
        self._places: dict[int, int] = {}
        self._open: dict[int, int] = {}
        self._alive: list[Any] = []

    def read(self, x: Any) -> tuple[Hashable, Rebuild]:
        """Return the key of an object, and how to make it again."""
        if isinstance(x, _PLAIN):
            return (type(x), repr(x)), _as_is(x)
        if isinstance(x, (keras.Variable, np.ndarray)) or current().is_tensor(x):
            return self._array(x)
        if type(x) in (tuple, list):
            found = [self.read(y) for y in x]
            kind, parts = type(x), [rebuild for _, rebuild in found]
            return (
                (kind, *(key for key, _ in found)),
                lambda arrays: kind(part(arrays) for part in parts),
            )
        if type(x) is dict:
            pairs = {name: self.read(y) for name, y in x.items()}
            return (
                (dict, *((repr(name), key) for name, (key, _) in pairs.items())),
                lambda arrays: {name: part(arrays) for name, (_, part) in pairs.items()},
            )
        if _is_constant(x):
            return (
                type(x),
                getattr(x, "__module__", None),
                getattr(x, "__qualname__", repr(x)),
            ), _as_is(x)
        if isinstance(x, types.FunctionType):
            return self._function(x)
        if isinstance(x, functools.partial):
            return self._made_of(_partial, x.func, list(x.args), dict(x.keywords))
        if isinstance(x, types.MethodType):
            return self._made_of(types.MethodType, x.__func__, x.__self__)
        if isinstance(x, keras.layers.Layer):
            return self._layer(x)
        self.is_known = False
        return None, _as_is(x)

    def _array(self, x: Any) -> tuple[Hashable, Rebuild]:
        if id(x) not in self._places:
            tensor = current().convert_to_tensor(x)
            self._places[id(x)] = len(self.tensors)
            self.tensors.append(tensor)
            self._alive.append(x)
        place = self._places[id(x)]
        tensor = self.tensors[place]
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        return ("array", place, tuple(tensor.shape), dtype), lambda arrays: arrays[place]

    def _function(self, x: types.FunctionType) -> tuple[Hashable, Rebuild]:
        if id(x) in self._open:
            # A function that calls itself: tracing ends only where no value decides, so its own name will do.
            return ("again", self._open[id(x)]), _as_is(x)
        self._open[id(x)] = len(self._open)
        cells = [_contents(cell) for cell in x.__closure__ or ()]
        defaults = (x.__defaults__ or (), x.__kwdefaults__ or {})
        names = sorted(set(_global_names(x.__code__)) & set(x.__globals__))
        reads = {name: x.__globals__[name] for name in names}
        key, parts = self.read([cells, list(defaults[0]), dict(defaults[1]), reads])

        def rebuild(arrays: Sequence[Any]) -> Any:
            cells, defaults, kwdefaults, reads = parts(arrays)
            function = types.FunctionType(
                x.__code__,
                {**x.__globals__, **reads},
                x.__name__,
                tuple(defaults),
                tuple(
                    types.CellType(cell) if cell is not _EMPTY else types.CellType()
                    for cell in cells
                ),
            )
            function.__kwdefaults__ = kwdefaults
            function.__qualname__ = x.__qualname__
            return function

        return ("function", x.__code__, key), rebuild

    def _made_of(self, make: Callable[..., Any], *parts: Any) -> tuple[Hashable, Rebuild]:
        key, rebuild = self.read(list(parts))
        return (make, key), lambda arrays: make(*rebuild(arrays))

    def _layer(self, x: keras.layers.Layer) -> tuple[Hashable, Rebuild]:
        """Return a layer with its attributes: a copy that Keras does not track gets traced values for its variables."""
        own = {name: y for name, y in vars(x).items() if name not in _LAYER_ATTRIBUTES}
        if id(x) in self._open:
            return ("again", self._open[id(x)]), _as_is(x)
        self._open[id(x)] = len(self._open)
        key, parts = self.read(own)
        call_key, _ = self.read(type(x).call)

        def rebuild(arrays: Sequence[Any]) -> Any:
            copy = object.__new__(type(x))
            copy.__dict__.update(vars(x))
            copy.__dict__.update(parts(arrays))
            return copy

        return ("layer", type(x), call_key, key), rebuild


def _partial(function: Any, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    return functools.partial(function, *args, **keywords)


_EMPTY = (None, "an empty cell")


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _EMPTY


def _global_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _is_constant(x: Any) -> bool:
    """Return whether an object is a module, class or function of a package that never changes it."""
    if isinstance(x, types.ModuleType):
        name = x.__name__
    elif isinstance(x, types.FunctionType):
        name = x.__module__
        if name == "builtins":  # of code without a module
            return False
    elif isinstance(x, (type, types.BuiltinFunctionType, np.ufunc)):
        name = getattr(x, "__module__", None) or "builtins"
    else:
        return False
    return str(name).partition(".")[0] in _CONSTANT
