"""Evaluates programs on arrays: in NumPy, the reference, or in the operations of Keras' backend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heed.ops.score_mod.operations import CONSTANT, LOAD, NAMES, OPERATIONS, SINGULAR, Type
from heed.ops.score_mod.program import Derivative, Instruction, Program

# Those that NumPy has under the same name.
_FUNCTIONS = (
    "sqrt exp expm1 log log1p log2 tanh sin cos floor ceil round abs sign power minimum maximum where isnan isinf "
    "isfinite"
).split()
_INT = np.iinfo(np.int32)


class NumpyFunctions:
    """The functions that `OPERATIONS` compute with, on arrays of float64, int32 and booleans."""

    def __init__(self) -> None:
        for name in _FUNCTIONS:
            setattr(self, name, getattr(np, name))
        self.erf = np.vectorize(math.erf, otypes=[np.float64])

    def rsqrt(self, x: Any) -> Any:  # noqa: D102
        return 1 / np.sqrt(x)

    def sigmoid(self, x: Any) -> Any:  # noqa: D102
        return 0.5 * (1 + np.tanh(0.5 * x))

    def softplus(self, x: Any) -> Any:  # noqa: D102
        return np.logaddexp(x, 0.0)

    def relu(self, x: Any) -> Any:  # noqa: D102
        return np.maximum(x, 0.0)

    def floor_divide(self, x: Any, y: Any) -> Any:  # noqa: D102
        if np.asarray(x).dtype.kind == "f":
            return np.floor(x / y)
        safe = np.where(y == 0, 1, y)
        # The smallest integer has no opposite: wraps.
        found = (np.asarray(x, np.int64) // safe).astype(np.int32)
        return np.where(y == 0, np.int32(0), found)

    def mod(self, x: Any, y: Any) -> Any:  # noqa: D102
        if np.asarray(x).dtype.kind == "f":
            return x - np.floor(x / y) * y
        return np.where(y == 0, np.int32(0), np.mod(x, np.where(y == 0, 1, y)))

    def left_shift(self, x: Any, y: Any) -> Any:  # noqa: D102
        return np.left_shift(x, y & np.int32(31))

    def right_shift(self, x: Any, y: Any) -> Any:  # noqa: D102
        return np.right_shift(x, y & np.int32(31))

    def to_float(self, x: Any) -> Any:  # noqa: D102
        return np.asarray(x, np.float64)

    def to_int(self, x: Any) -> Any:  # noqa: D102
        x = np.asarray(x)
        if x.dtype.kind == "f":
            x = np.clip(np.trunc(np.where(np.isnan(x), 0.0, x)), _INT.min, _INT.max)
        return x.astype(np.int32)

    def constant(self, value: float, kind: Type) -> Any:  # noqa: D102
        return (np.float64, np.int32, np.bool_)[kind](value)

    def load(self, array: Any, index: Any) -> Any:  # noqa: D102
        return np.ravel(array)[np.clip(index, 0, np.size(array) - 1)]


NUMPY = NumpyFunctions()


def evaluate(
    instructions: Sequence[Instruction],
    functions: Any,
    leaves: Mapping[str, Any],
    captures: Sequence[Any],
    visible: Any = None,
) -> list[Any]:
    """Return all values of a list of instructions.

    Args:
        instructions: of a program or of its derivative.
        functions: `NUMPY`, or an object with its methods.
        leaves: SCORE, UPSTREAM and the indices by name; they broadcast to one shape.
        captures: the captured arrays, of the types of the program.
        visible: booleans, or None for all: elsewhere values mean nothing, but no derivative of them is nonfinite.
    """

    def safe(x: Any, kind: Type) -> Any:
        if visible is None or kind != Type.FLOAT:
            return x
        return functions.where(visible, x, functions.constant(1.0, Type.FLOAT))

    values: list[Any] = []
    for x in instructions:
        operands = [values[number] for number in x.operands]
        if x.opcode == CONSTANT:
            found = functions.constant(x.constant, x.type)
        elif x.opcode == LOAD:
            found = safe(functions.load(captures[x.capture], operands[0]), x.type)
        elif (name := NAMES[x.opcode]) in leaves:
            found = leaves[name]
        else:
            if name in SINGULAR:
                kinds = [instructions[number].type for number in x.operands]
                operands = [safe(y, kind) for y, kind in zip(operands, kinds, strict=True)]
            found = OPERATIONS[name].compute(functions, *operands)
        values.append(found)
    return values


def reference(
    program: Program, leaves: Mapping[str, Any], captures: Sequence[Any]
) -> tuple[Any, Any]:
    """Return modified score and keep in NumPy, None where the program has none; for tests."""
    with np.errstate(all="ignore"):
        values = evaluate(program.instructions, NUMPY, leaves, captures)
    return tuple(values[x] if x >= 0 else None for x in (program.score, program.keep))  # type: ignore[return-value]


def reference_gradients(
    derivative: Derivative, leaves: Mapping[str, Any], captures: Sequence[Any]
) -> tuple[Any, list[Any]]:
    """Return the gradients of the score and of each captured array (None for one without) in NumPy; for tests."""
    with np.errstate(all="ignore"):
        values = evaluate(derivative.instructions, NUMPY, leaves, captures)
    shape = np.broadcast_shapes(*(np.shape(x) for x in leaves.values()))
    score = values[derivative.score_gradient] if derivative.score_gradient >= 0 else 0.0
    totals: list[Any] = [None] * len(captures)
    for capture, position, gradient in derivative.scatters:
        size = np.size(captures[capture])
        if totals[capture] is None:
            totals[capture] = np.zeros(size)
        where = np.clip(np.broadcast_to(values[position], shape), 0, size - 1)
        np.add.at(totals[capture], where.ravel(), np.broadcast_to(values[gradient], shape).ravel())
    totals = [
        None if x is None else x.reshape(np.shape(y)) for x, y in zip(totals, captures, strict=True)
    ]
    return np.broadcast_to(score, shape), totals
