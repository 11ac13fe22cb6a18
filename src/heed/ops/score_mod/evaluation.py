"""Evaluates programs on arrays: in NumPy, the reference, or in the operations of Keras' backend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heed.ops.score_mod.operations import CONSTANT, LOAD, NAMES, OPERATIONS, SINGULAR, Type
from heed.ops.score_mod.program import Instruction

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

    def rsqrt(self, x: Any) -> Any:
        return 1 / np.sqrt(x)

    def sigmoid(self, x: Any) -> Any:
        return 0.5 * (1 + np.tanh(0.5 * x))

    def softplus(self, x: Any) -> Any:
        return np.logaddexp(x, 0.0)

    def relu(self, x: Any) -> Any:
        return np.maximum(x, 0.0)

    def floor_divide(self, x: Any, y: Any) -> Any:
        if np.asarray(x).dtype.kind == "f":
            return np.floor(x / y)
        safe = np.where(y == 0, 1, y)
        # The smallest integer has no opposite: wraps.
        found = (np.asarray(x, np.int64) // safe).astype(np.int32)
        return np.where(y == 0, np.int32(0), found)

    def mod(self, x: Any, y: Any) -> Any:
        if np.asarray(x).dtype.kind == "f":
            return x - np.floor(x / y) * y
        return np.where(y == 0, np.int32(0), np.mod(x, np.where(y == 0, 1, y)))

    def left_shift(self, x: Any, y: Any) -> Any:
        return np.left_shift(x, y & np.int32(31))

    def right_shift(self, x: Any, y: Any) -> Any:
        return np.right_shift(x, y & np.int32(31))

    def to_float(self, x: Any) -> Any:
        return np.asarray(x, np.float64)

    def to_int(self, x: Any) -> Any:
        x = np.asarray(x)
        if x.dtype.kind == "f":
            x = np.clip(np.trunc(np.where(np.isnan(x), 0.0, x)), _INT.min, _INT.max)
        return x.astype(np.int32)

    def constant(self, value: float, kind: Type) -> Any:
        return (np.float64, np.int32, np.bool_)[kind](value)

    def load(self, array: Any, index: Any) -> Any:
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
