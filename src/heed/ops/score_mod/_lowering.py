"""Turns operations of Keras on traced values into instructions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from heed.ops.score_mod._builder import Builder
from heed.ops.score_mod._errors import UntraceableError, user_line
from heed.ops.score_mod._traced import Traced
from heed.ops.score_mod.bounds import Place
from heed.ops.score_mod.operations import Type

_MOST_NUMBERS = 2**31 - 1
_NARROW = ("float16", "bfloat16")


class Given(NamedTuple):
    """A captured array, by its place among those that are found in the function."""

    number: int


class Found(NamedTuple):
    """A tensor that came up while the function was traced."""

    tensor: Any


class Applied(NamedTuple):
    """One result of an operation of Keras on captured arrays, which is computed once a call."""

    operation: Any
    args: Any
    kwargs: Any
    output: int


Expression = Given | Found | Applied


class Number(NamedTuple):
    """A number for each pair: a value of the program."""

    value: int


class Array(NamedTuple):
    """A captured array, or a part of it that depends on the pair."""

    expression: Expression  # the whole array
    type: Type  # of its numbers
    # how far each remaining axis goes in the whole array, flat; None for the whole array
    steps: tuple[int, ...] | None = None
    # the value of the program where the part begins in the whole array, flat
    offset: int | None = None


def type_of(dtype: Any) -> Type:
    """Return the type of values of a dtype."""
    name = keras.backend.standardize_dtype(dtype)
    if name == "bool":
        return Type.BOOL
    if "int" in name and not name.startswith("float"):
        return Type.INT
    if name.startswith(("float", "bfloat")):
        return Type.FLOAT
    raise UntraceableError(f"numbers of dtype {name} are none of a score")


class Lowering:
    """What one trace has found so far.

    Attributes:
        builder: the program.
        captures: the arrays that it reads.
        problem: the first thing that cannot be traced, with its line, or None.
    """

    def __init__(self) -> None:
        self.builder = Builder(Place())
        self.captures: list[Array] = []
        self.problem: tuple[str, str | None] | None = None
        self._numbers: dict[Any, int] = {}
        self._found: dict[int, Found] = {}

    def leaf(self, name: str, dtype: str) -> Traced:
        """Return SCORE or an index as a traced value."""
        return Traced.leaf((), dtype, Number(self.builder.leaf(name)), self.lower)

    def given(self, number: int, shape: Sequence[int], dtype: str) -> Traced:
        """Return a captured array as a traced value."""
        return Traced.leaf(shape, dtype, Array(Given(number), type_of(dtype)), self.lower)

    def lower(
        self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], outputs: Sequence[Traced]
    ) -> None:
        """Set what the results of an operation are."""
        try:
            self._lower(operation, args, kwargs, outputs)
        except UntraceableError as error:
            self.problem = self.problem or (str(error), user_line())
            raise

    def _lower(
        self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], outputs: Sequence[Traced]
    ) -> None:
        given = [*keras.tree.flatten((list(args), kwargs)), *vars(operation).values()]
        traced = [x.payload for x in given if isinstance(x, Traced)]
        if all(isinstance(x, Array) and x.steps is None for x in traced):
            for place, x in enumerate(outputs):
                x.payload = Array(Applied(operation, args, kwargs, place), type_of(x.dtype))
            return
        name = type(operation).__name__
        handler = _HANDLERS.get(name)
        if isinstance(operation, keras.layers.Layer):
            result = operation.call(*args, **kwargs)
            outputs[0].payload = result.payload
            return
        if handler is None:
            raise UntraceableError(f"{_title(name)} is none of the operations of a score function")
        if kwargs:
            raise UntraceableError(f"{_title(name)} takes no {', '.join(kwargs)} here")
        call = _Call(self, operation, args, type_of(outputs[0].dtype))
        payload = handler(call)
        if isinstance(payload, int):
            if tuple(outputs[0].shape) != ():
                raise UntraceableError(
                    f"{_title(name)} gives an array of shape {tuple(outputs[0].shape)} for each pair; it must "
                    "give one number"
                )
            payload = Number(self.builder.convert(payload, call.kind))
        outputs[0].payload = payload

    def value(self, x: Any, kind: Type | None = None) -> int:
        """Return an operand as a value of the program, in a type if one is given."""
        found = self._value(x)
        return found if kind is None else self.builder.convert(found, kind)

    def _value(self, x: Any) -> int:
        builder = self.builder
        if isinstance(x, (bool, np.bool_)):
            return builder.constant(bool(x), Type.BOOL)
        if isinstance(x, (int, np.integer)):
            if not -(2**31) <= int(x) < 2**31:
                raise UntraceableError(f"the integer {x} is none of int32")
            return builder.constant(int(x), Type.INT)
        if isinstance(x, (float, np.floating)):
            return builder.constant(float(x), Type.FLOAT)
        payload = self.payload(x)
        if isinstance(payload, Number):
            return payload.value
        shape = self.shape(x)
        if shape != ():
            raise UntraceableError(
                f"an array of shape {shape} is used where each pair needs one number; pick it with "
                "`keras.ops.take(array, index)`"
            )
        offset = builder.constant(0, Type.INT) if payload.offset is None else payload.offset
        return builder.load(self.capture(payload), payload.type, offset)

    def payload(self, x: Any) -> Number | Array:
        """Return what an operand is."""
        if isinstance(x, Traced):
            return x.payload
        if isinstance(x, (list, tuple, np.ndarray)) or not hasattr(x, "dtype"):
            try:
                x = ops.convert_to_tensor(x)
            except (TypeError, ValueError) as error:
                raise UntraceableError(f"{type(x).__name__} is no number and no array") from error
        found = self._found.setdefault(id(x), Found(x))  # which keeps x, and so its identity
        return Array(found, type_of(x.dtype))

    def shape(self, x: Any) -> tuple[Any, ...]:
        """Return the shape of an array."""
        return tuple(x.shape) if hasattr(x, "shape") else np.shape(x)

    def capture(self, array: Array) -> int:
        """Return the number of the array of the program that holds a captured array."""
        expression = array.expression
        key: Any = expression
        if isinstance(expression, Found):
            key = ("found", id(expression.tensor))
        elif isinstance(expression, Applied):
            key = ("applied", id(expression.operation), id(expression.args), expression.output)
        if key not in self._numbers:
            self._numbers[key] = len(self.captures)
            self.captures.append(array)
        return self._numbers[key]


class _Call(NamedTuple):
    """An operation of Keras that is traced."""

    lowering: Lowering  # the trace
    operation: Any  # Keras' object, which holds some arguments as attributes
    args: Sequence[Any]  # the others
    kind: Type  # the type of the result, as Keras has it

    @property
    def builder(self) -> Builder:
        return self.lowering.builder

    def value(self, x: Any, kind: Type | None = None) -> int:
        return self.lowering.value(x, kind)

    def values(self, kind: Type | None = None) -> list[int]:
        return [self.lowering.value(x, kind) for x in self.args]


_Handler = Callable[[_Call], "int | Number | Array"]


def _title(name: str) -> str:
    """Return the name of a function of Keras, of the class of its operation."""
    return f"`keras.ops.{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name).lower()}`"


def _floats(opcode: str) -> _Handler:
    return lambda call: call.builder.emit(opcode, *call.values(Type.FLOAT))


def _of_numbers(opcode: str) -> _Handler:
    """Return an operation on integers or floats, in the type of its result."""

    def handle(call: _Call) -> int:
        if call.kind == Type.BOOL:
            as_logical = {"ADD": "OR", "MUL": "AND", "MAX": "OR", "MIN": "AND"}
            if opcode not in as_logical:
                raise UntraceableError(
                    f"{_title(type(call.operation).__name__)} of booleans is no number"
                )
            return call.builder.emit(as_logical[opcode], *call.values(Type.BOOL))
        return call.builder.emit(opcode, *call.values(call.kind))

    return handle


def _comparison(opcode: str) -> _Handler:
    def handle(call: _Call) -> int:
        values = call.values()
        kind = Type(min(map(call.builder.type_of, values)))
        kind = Type.INT if kind == Type.BOOL else kind
        return call.builder.emit(opcode, *(call.builder.convert(x, kind) for x in values))

    return handle


def _logical(opcode: str) -> _Handler:
    return lambda call: call.builder.emit(opcode, *call.values(Type.BOOL))


def _bits(opcode: str) -> _Handler:
    def handle(call: _Call) -> int:
        values = call.values()
        if Type.FLOAT in map(call.builder.type_of, values):
            raise UntraceableError("bitwise operations are for integers and booleans")
        shifts = opcode in ("SHL", "SHR")
        kind = Type.INT if shifts else Type(min(map(call.builder.type_of, values)))
        return call.builder.emit(opcode, *(call.builder.convert(x, kind) for x in values))

    return handle


def _test(opcode: str, of_integers: bool) -> _Handler:
    def handle(call: _Call) -> int:
        value = call.value(call.args[0])
        if call.builder.type_of(value) != Type.FLOAT:
            return call.builder.constant(of_integers, Type.BOOL)
        return call.builder.emit(opcode, value)

    return handle


def _where(call: _Call) -> int:
    condition, yes, no = call.args
    kind = call.kind
    return call.builder.where(
        call.value(condition, Type.BOOL), call.value(yes, kind), call.value(no, kind)
    )


def _clip(call: _Call) -> int:
    found = call.value(call.args[0], call.kind)
    # The order of NumPy: the upper bound wins.
    for opcode, end in (("MAX", call.operation.x_min), ("MIN", call.operation.x_max)):
        if end is not None:
            found = call.builder.emit(opcode, found, call.value(end, call.kind))
    return found


def _cast(call: _Call) -> int:
    dtype = keras.backend.standardize_dtype(call.operation.dtype)
    if dtype in _NARROW or dtype not in ("float32", "float64", "int32", "int64", "bool"):
        raise UntraceableError(
            f"a cast to {dtype} would round; numbers of a score function are float32 (float64 for float64), int32 "
            "or bool"
        )
    return call.value(call.args[0], type_of(dtype))


def _round(call: _Call) -> int:
    if call.operation.decimals:
        raise UntraceableError("`keras.ops.round` is traced for 0 decimals")
    value = call.value(call.args[0], call.kind)
    return call.builder.emit("ROUND", value) if call.kind == Type.FLOAT else value


def _power(call: _Call) -> int:
    builder = call.builder
    if call.kind == Type.FLOAT:
        return builder.emit("POW", *call.values(Type.FLOAT))
    base, exponent = call.values(Type.INT)
    times = builder.value_of(exponent)
    if times is None or not 0 <= times <= 16:
        raise UntraceableError(
            "a power of integers needs a number of Python from 0 to 16 as its exponent; make the base a float for "
            "others"
        )
    found = builder.constant(1, Type.INT)
    for _ in range(int(times)):
        found = builder.multiply(found, base)
    return found


def _like(value: float | None) -> _Handler:
    def handle(call: _Call) -> int:
        number = call.args[1] if value is None else value
        return call.value(number, call.kind)

    return handle


def _copy(call: _Call) -> int | Number | Array:
    return call.lowering.payload(call.args[0])


def _take(call: _Call) -> Array:
    return _part(call, call.operation.axis)


def _part(call: _Call, axis: int | None) -> Array:
    """Return a part of a captured array. Negative indices count from the end; all are clamped."""
    lowering, builder = call.lowering, call.builder
    x, index = call.args
    array = lowering.payload(x)
    if isinstance(array, Number):
        raise UntraceableError(
            "`keras.ops.take` needs a captured array; a number of a pair has no entries"
        )
    shape = lowering.shape(x)
    if None in shape:
        raise UntraceableError(f"a captured array must have a known shape. Received: shape={shape}")
    shape = tuple(map(int, shape))
    if math.prod(shape) > _MOST_NUMBERS:
        raise UntraceableError(f"a captured array of shape {shape} has more than 2^31 - 1 numbers")
    if lowering.shape(index) != ():
        raise UntraceableError(
            f"an index must be one integer for each pair. Received: indices of shape {lowering.shape(index)}"
        )
    steps = array.steps
    if steps is None:
        steps = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    if axis is None:
        if array.steps is not None and len(shape) != 1:
            raise UntraceableError("`keras.ops.take` of a part of an array needs an axis")
        shape, steps, axis = (math.prod(shape),), steps[-1:] or (1,), 0
    if not -len(shape) <= axis < len(shape):
        raise UntraceableError(f"an array of shape {shape} has no axis {axis}")
    axis %= len(shape)
    length = shape[axis]
    if not length:
        raise UntraceableError(f"an array of shape {shape} has nothing to take from")
    where = lowering.value(index)
    if builder.type_of(where) == Type.FLOAT:
        raise UntraceableError("an index must be an integer; cast it to int32")
    where = builder.convert(where, Type.INT)
    zero, size, last = (builder.constant(n, Type.INT) for n in (0, length, length - 1))
    where = builder.where(builder.emit("LT", where, zero), builder.add(where, size), where)
    where = builder.emit("MAX", builder.emit("MIN", where, last), zero)
    part = builder.multiply(where, builder.constant(steps[axis], Type.INT))
    offset = part if array.offset is None else builder.add(array.offset, part)
    left = steps[:axis] + steps[axis + 1 :]
    return Array(array.expression, array.type, left, offset)


def _get_item(call: _Call) -> Array:
    if not isinstance(call.args[1], int):
        raise UntraceableError(
            "a part of an array that depends on the pair takes integers as indices; use `keras.ops.take`"
        )
    return _part(call, 0)


def _composed(compute: Callable[..., int]) -> _Handler:
    return lambda call: compute(call.builder, *call.values(Type.FLOAT))


def _scaled(opcode: str, factor: float) -> _Handler:
    return _composed(lambda b, x: b.multiply(b.number(factor), b.emit(opcode, x)))


def _leaky_relu(call: _Call) -> int:
    b, x = call.builder, call.value(call.args[0], Type.FLOAT)
    slope = call.value(call.operation.negative_slope, Type.FLOAT)
    return b.where(b.emit("GT", x, b.number(0.0)), x, b.multiply(slope, x))


def _elu(call: _Call) -> int:
    b, x = call.builder, call.value(call.args[0], Type.FLOAT)
    low = b.multiply(call.value(call.operation.alpha, Type.FLOAT), b.emit("EXPM1", x))
    return b.where(b.emit("GT", x, b.number(0.0)), x, low)


def _gelu(call: _Call) -> int:
    b, x = call.builder, call.value(call.args[0], Type.FLOAT)
    if call.operation.approximate:
        cube = b.multiply(b.emit("SQUARE", x), x)
        inside = b.multiply(
            b.number(math.sqrt(2 / math.pi)), b.add(x, b.multiply(b.number(0.044715), cube))
        )
        share = b.emit("TANH", inside)
    else:
        share = b.emit("ERF", b.multiply(x, b.number(math.sqrt(0.5))))
    return b.multiply(b.multiply(b.number(0.5), x), b.add(b.number(1.0), share))


# By the class of Keras' operation.
_HANDLERS: dict[str, _Handler] = {
    **{
        name: _floats(name.upper())
        for name in (
            "Sqrt Rsqrt Exp Expm1 Log Log1p Log2 Tanh Sigmoid Softplus Sin Cos Erf Floor Ceil Reciprocal Relu"
        ).split()
    },
    "Divide": _floats("DIV"),
    "TrueDivide": _floats("DIV"),
    "Round": _round,
    "Power": _power,
    "Negative": _of_numbers("NEG"),
    "Absolute": _of_numbers("ABS"),
    "Sign": _of_numbers("SIGN"),
    "Square": _of_numbers("SQUARE"),
    "Add": _of_numbers("ADD"),
    "Subtract": _of_numbers("SUB"),
    "Multiply": _of_numbers("MUL"),
    "Minimum": _of_numbers("MIN"),
    "Maximum": _of_numbers("MAX"),
    "FloorDivide": _of_numbers("FLOORDIV"),
    "Mod": _of_numbers("MOD"),
    **{f"Logical{name}": _logical(name.upper()) for name in ("And", "Or", "Xor", "Not")},
    **{f"Bitwise{name}": _bits(name.upper()) for name in ("And", "Or", "Xor", "Not")},
    "BitwiseInvert": _bits("NOT"),
    "BitwiseLeftShift": _bits("SHL"),
    "LeftShift": _bits("SHL"),
    "BitwiseRightShift": _bits("SHR"),
    "RightShift": _bits("SHR"),
    "Equal": _comparison("EQ"),
    "NotEqual": _comparison("NE"),
    "Less": _comparison("LT"),
    "LessEqual": _comparison("LE"),
    "Greater": _comparison("GT"),
    "GreaterEqual": _comparison("GE"),
    "Where": _where,
    "Clip": _clip,
    "Cast": _cast,
    "Isnan": _test("ISNAN", False),
    "Isinf": _test("ISINF", False),
    "Isfinite": _test("ISFINITE", True),
    "ZerosLike": _like(0.0),
    "OnesLike": _like(1.0),
    "FullLike": _like(None),
    "Copy": _copy,
    "ConvertToTensor": _copy,
    "Take": _take,
    "GetItem": _get_item,
    # Made of others.
    "Silu": _composed(lambda b, x: b.multiply(x, b.emit("SIGMOID", x))),
    "LogSigmoid": _composed(lambda b, x: b.emit("NEG", b.emit("SOFTPLUS", b.emit("NEG", x)))),
    "Relu6": _composed(lambda b, x: b.emit("MIN", b.emit("RELU", x), b.number(6.0))),
    "Softsign": _composed(lambda b, x: b.divide(x, b.add(b.number(1.0), b.emit("ABS", x)))),
    "Tan": _composed(lambda b, x: b.divide(b.emit("SIN", x), b.emit("COS", x))),
    "Log10": _scaled("LOG2", math.log10(2)),
    "Exp2": _composed(lambda b, x: b.emit("EXP", b.multiply(b.number(math.log(2)), x))),
    "Trunc": _composed(
        lambda b, x: b.where(b.emit("LT", x, b.number(0.0)), b.emit("CEIL", x), b.emit("FLOOR", x))
    ),
    "Logaddexp": _composed(
        lambda b, x, y: b.add(
            b.emit("MAX", x, y),
            b.emit("LOG1P", b.emit("EXP", b.emit("NEG", b.emit("ABS", b.subtract(x, y))))),
        )
    ),
    "LeakyRelu": _leaky_relu,
    "Elu": _elu,
    "Gelu": _gelu,
}
