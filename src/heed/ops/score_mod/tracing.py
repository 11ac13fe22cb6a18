"""Traces a function of a user to a `Program`, once for all functions with the same code and captured shapes."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
from keras.src.backend.common.global_state import get_global_attribute

from heed.ops.backends import current
from heed.ops.score_mod import _captures
from heed.ops.score_mod._builder import finish
from heed.ops.score_mod._errors import describe, last_line, line_of
from heed.ops.score_mod._lowering import Applied, Array, Expression, Found, Given, Lowering
from heed.ops.score_mod._traced import Traced
from heed.ops.score_mod.operations import Type
from heed.ops.score_mod.program import NONE, Program

_PAIR = ("batch", "head", "query", "key")
# The arguments of a function, by the argument of heed that takes it.
_ARGUMENTS = {"score_mod": ("score", *_PAIR), "mask": _PAIR}
_CACHE_SIZE = 256
_lock = threading.Lock()


class TracedFunction(NamedTuple):
    """A program with the arrays of one call."""

    program: Program  # what the function computes
    # the arrays that it reads: tensors of the backend, of any float, integer or boolean dtype
    captures: tuple[Any, ...]


class _Trace(NamedTuple):
    program: Program
    expressions: tuple[Expression, ...]


# By argument name, key of the function and dtype.
_traces: dict[Any, _Trace] = {}


def trace_score(function: Any, dtype: str = "float32") -> TracedFunction:
    """Return the program of `function(score, batch, head, query, key)`.

    Args:
        function: returns the modified score.
        dtype: of the score.

    Raises:
        TypeError: for a function that cannot be traced. The message says why, and in which line.
        ValueError: for a function that returns something else than one number.
    """
    return _traced("score_mod", function, dtype)


def trace_mask(function: Any) -> TracedFunction:
    """Return the program of `function(batch, head, query, key)`, which says whether a pair counts.

    Raises:
        TypeError, ValueError: as `trace_score`.
    """
    return _traced("mask", function, "float32")


def decorate(decorator: Callable[[Any], Any]) -> None:
    """Decorate what traces functions, for a backend whose compiler would read its code."""
    global _traced
    _traced = decorator(_traced)


def _traced(name: str, function: Any, dtype: str) -> TracedFunction:
    if not callable(function):
        raise TypeError(
            f"`{name}` must be a function of ({', '.join(_ARGUMENTS[name])}). Received: {function!r}"
        )
    if isinstance(function, keras.layers.Layer) and not function.built:
        function.build(())
    captured = _captures.read(function)
    key = None if captured.key is None else (name, dtype, captured.key)
    known = None if key is None else _traces.get(key)
    if known is None:
        known = _trace(name, function, captured, dtype)
        if key is not None and not any(map(_holds_tensors, known.expressions)):
            with _lock:
                if len(_traces) >= _CACHE_SIZE:
                    _traces.clear()
                _traces[key] = known
    values = _Evaluation(captured.tensors)
    return TracedFunction(known.program, tuple(map(values.of, known.expressions)))


def _trace(name: str, function: Any, captured: _captures.Captured, dtype: str) -> _Trace:
    """Trace the function with its arrays as traced values; if that fails, with the arrays themselves."""
    _check_arguments(name, function)
    try:
        return _run(name, function, captured, dtype, with_arrays=False)
    except Exception as first:
        if not captured.tensors:
            raise
        try:
            return _run(name, function, captured, dtype, with_arrays=True)
        except Exception:
            raise first from first.__cause__


def _run(
    name: str, function: Any, captured: _captures.Captured, dtype: str, with_arrays: bool
) -> _Trace:
    lowering = Lowering()
    leaves = [
        lowering.leaf(x.upper(), dtype if x == "score" else "int32") for x in _ARGUMENTS[name]
    ]
    given = [
        lowering.given(place, x.shape, keras.backend.standardize_dtype(x.dtype))
        for place, x in enumerate(captured.tensors)
    ]
    traced = function if with_arrays else captured.rebuild(given)
    run = traced.call if isinstance(traced, keras.layers.Layer) else traced
    # Holds the values of variables that a caller's scope holds, and notes those that change.
    outside = get_global_attribute("stateless_scope")
    before = {} if outside is None else dict(outside.state_mapping)
    scope = keras.StatelessScope()
    scope.state_mapping.update(before)
    try:
        with scope:
            result = run(*leaves)
    except Exception as error:
        problem, line = lowering.problem or (last_line(error), None)
        where = line or line_of(error)
        raise TypeError(
            f"`{name}` must be a function of Python operators and `keras.ops` on single numbers. "
            f"Received: {describe(function)}, which fails{f' at {where}' if where else ''}: {problem}"
        ) from error
    if any(before.get(name) is not value for name, value in scope.state_mapping.items()):
        raise TypeError(
            f"`{name}` must be a function of its arguments alone, without random numbers and without changes of "
            f"variables. Received: {describe(function)}"
        )
    value = _result(name, function, lowering, result)
    outputs = (value, NONE) if name == "score_mod" else (NONE, value)
    instructions, places = finish(lowering.builder.instructions, outputs)
    return _used(instructions, places, lowering.captures)


def _used(instructions: Any, places: Sequence[int], captures: Sequence[Array]) -> _Trace:
    """Leave out the captured arrays that no instruction reads any more."""
    numbers = sorted({x.capture for x in instructions if x.name == "LOAD"})
    new = {old: number for number, old in enumerate(numbers)}
    instructions = tuple(
        x._replace(capture=new[x.capture]) if x.name == "LOAD" else x for x in instructions
    )
    types = tuple(captures[old].type for old in numbers)
    return _Trace(
        Program(instructions, types, *places), tuple(captures[old].expression for old in numbers)
    )


def _check_arguments(name: str, function: Any) -> None:
    arguments = _ARGUMENTS[name]
    call = function.call if isinstance(function, keras.layers.Layer) else function
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # a function of C
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TypeError(
            f"`{name}` must be a function of ({', '.join(arguments)}). Received: {describe(function)} with the "
            f"arguments {signature}: {error}"
        ) from None


def _result(name: str, function: Any, lowering: Lowering, result: Any) -> int:
    wanted = Type.FLOAT if name == "score_mod" else Type.BOOL
    shape = lowering.shape(result) if hasattr(result, "shape") else None
    if isinstance(result, (bool, int, float)):
        shape = ()
    if shape == ():
        value = lowering.value(result)
        kind = lowering.builder.type_of(value)
        # A number of Python serves as a float, an index does not; an integer serves as a boolean.
        if kind == wanted or (
            kind == Type.INT and (wanted == Type.BOOL or isinstance(result, int))
        ):
            return lowering.builder.convert(value, wanted)
        received = {Type.FLOAT: "a float", Type.INT: "an integer", Type.BOOL: "a boolean"}[kind]
    else:
        received = type(result).__name__ if shape is None else f"an array of shape {shape}"
    raise ValueError(
        f"`{name}` must return one {'float' if wanted == Type.FLOAT else 'boolean'} for each pair. "
        f"Received: {received} from {describe(function)}"
    )


def _holds_tensors(expression: Expression) -> bool:
    """Return whether an array came up while the function was traced, and so belongs to this call alone."""
    if isinstance(expression, Applied):
        given = [*keras.tree.flatten((list(expression.args), expression.kwargs))]
        given += vars(expression.operation).values()
        return any(
            _holds_tensors(x.payload.expression)
            if isinstance(x, Traced)
            else current().is_tensor(x)
            for x in given
        )
    return isinstance(expression, Found)


class _Evaluation:
    """Computes captured arrays: the operations on them that do not depend on the pair, once a call."""

    def __init__(self, tensors: Sequence[Any]):
        self._tensors = tensors
        self._known: dict[Any, Any] = {}

    def of(self, expression: Expression) -> Any:
        """Return the tensor of an expression."""
        if isinstance(expression, Given):
            return self._tensors[expression.number]
        if isinstance(expression, Found):
            return current().convert_to_tensor(expression.tensor)
        key = id(expression.operation), id(expression.args)
        if key not in self._known:
            self._known[key] = self._apply(expression)
        found = self._known[key]
        return found[expression.output] if isinstance(found, (list, tuple)) else found

    def _apply(self, expression: Applied) -> Any:
        operation = expression.operation
        attributes = {name: x for name, x in vars(operation).items() if isinstance(x, Traced)}
        if attributes:
            operation = copy.copy(operation)
            vars(operation).update({name: self._value(x) for name, x in attributes.items()})
        args, kwargs = keras.tree.map_structure(
            self._value, (list(expression.args), expression.kwargs)
        )
        return operation(*args, **kwargs)

    def _value(self, x: Any) -> Any:
        return self.of(x.payload.expression) if isinstance(x, Traced) else x
