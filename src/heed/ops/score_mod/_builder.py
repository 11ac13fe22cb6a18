"""Builds programs: folds constants, shares common values, and uses what is known of the ranges of indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heed.ops.score_mod.bounds import Place, range_of
from heed.ops.score_mod.evaluation import NUMPY
from heed.ops.score_mod.operations import CONSTANT, LOAD, NUMBERS, OPERATIONS, SCORE, Range, Type
from heed.ops.score_mod.program import Instruction, with_operands

# Integers up to here are exact as floats.
_EXACT = 2.0**24
_DTYPES = {Type.FLOAT: np.float64, Type.INT: np.int32, Type.BOOL: np.bool_}


class Builder:
    """A list of instructions that grows; each value has a number.

    Args:
        place: the ranges of the indices that the program is for.
    """

    def __init__(self, place: Place):
        self.instructions: list[Instruction] = []
        self._place = place
        self._ranges: list[Range] = []
        self._known: dict[Instruction, int] = {}
        self._of_score: list[bool] = []

    def number(self, value: float) -> int:
        return self.constant(value, Type.FLOAT)

    def constant(self, value: float, kind: Type) -> int:
        return self._append(Instruction(CONSTANT, kind, constant=float(value)))

    def leaf(self, name: str) -> int:
        kind = Type.FLOAT if name in ("SCORE", "UPSTREAM") else Type.INT
        return self._append(Instruction(NUMBERS[name], kind))

    def load(self, capture: int, kind: Type, index: int) -> int:
        """Return the number of a captured array of a type at an index."""
        return self._append(Instruction(LOAD, kind, capture, index))

    def copy(self, x: Instruction, operands: Sequence[int]) -> int:
        """Return the value of an instruction of another list, with these operands."""
        if x.name in OPERATIONS:
            return self.emit(x.name, *operands)
        return self._append(with_operands(x, operands))

    def type_of(self, value: int) -> Type:
        return self.instructions[value].type

    def value_of(self, value: int) -> float | None:
        """Return the number that a value always is, or None."""
        x = self.instructions[value]
        return x.constant if x.opcode == CONSTANT else None

    def emit(self, name: str, *operands: int) -> int:
        kind = OPERATIONS[name].result
        if kind is None:
            kind = self.type_of(operands[-1])
        simpler = self._simplify(name, operands)
        if simpler is not None:
            return simpler
        if all(self.value_of(x) is not None for x in operands):
            return self.constant(self._fold(name, operands), kind)
        return self._append(Instruction(NUMBERS[name], kind, 0, *operands))

    def add(self, a: int, b: int) -> int:
        return self.emit("ADD", a, b)

    def subtract(self, a: int, b: int) -> int:
        return self.emit("SUB", a, b)

    def multiply(self, a: int, b: int) -> int:
        return self.emit("MUL", a, b)

    def divide(self, a: int, b: int) -> int:
        return self.emit("DIV", a, b)

    def where(self, condition: int, a: int, b: int) -> int:
        return self.emit("WHERE", condition, a, b)

    def to_float(self, x: int) -> int:
        return self.convert(x, Type.FLOAT)

    def convert(self, x: int, kind: Type) -> int:
        return x if self.type_of(x) == kind else self.emit(f"TO_{kind.name}", x)

    def share(self, first: int, equal: int) -> Sequence[int]:
        """Return the slopes of a minimum or maximum: 1 where an operand is it, 1/2 where both are."""
        one, half, zero = map(self.number, (1.0, 0.5, 0.0))
        return [
            self.where(equal, half, self.where(first, one, zero)),
            self.where(equal, half, self.where(first, zero, one)),
        ]

    def _is_exact(self, x: int) -> bool:
        """Return whether a value is an integer that is exact as a float."""
        lo, hi = self._ranges[x]
        return self.type_of(x) == Type.INT and bool(lo >= -_EXACT and hi <= _EXACT)

    def _fold(self, name: str, operands: Sequence[int]) -> float:
        values = [_DTYPES[self.type_of(x)](self.instructions[x].constant) for x in operands]
        with np.errstate(all="ignore"):
            return float(OPERATIONS[name].compute(NUMPY, *values))

    def _append(self, x: Instruction) -> int:
        # NaN is no equal of itself.
        key = x if x.constant == x.constant else x._replace(constant=0.0, c=-1)
        if x.opcode == CONSTANT and x.constant == 0.0 and np.signbit(x.constant):
            key = x._replace(c=-2)
        if key in self._known:
            return self._known[key]
        found = range_of(
            x,
            [self._ranges[y] for y in x.operands],
            [self.type_of(y) for y in x.operands],
            self._place,
        )
        if x.type != Type.FLOAT and x.opcode != CONSTANT and found[0] == found[1]:
            # Always the same number, wherever the pair is.
            return self.constant(float(found[0]), x.type)
        self._known[key] = len(self.instructions)
        self.instructions.append(x)
        self._ranges.append(found)
        self._of_score.append(x.opcode == SCORE or any(self._of_score[y] for y in x.operands))
        return self._known[key]

    def _simplify(self, name: str, operands: Sequence[int]) -> int | None:
        """Return an earlier value that an operation gives, if it is known to."""
        values = [self.value_of(x) for x in operands]
        a, b = operands[0], operands[-1]
        first, last = values[0], values[-1]
        result: int | None = None
        if name == "WHERE":
            if first is not None:
                result = operands[1] if first else operands[2]
            elif operands[1] == operands[2]:
                result = operands[1]
        elif name == "ADD":
            result = b if first == 0 else a if last == 0 else None
        elif name in ("SUB", "SHL", "SHR"):
            result = a if last == 0 else None
        elif name == "MUL":
            result = b if first == 1 else a if last == 1 else None
            if result is None and -1 in (first, last):
                return self.emit("NEG", b if first == -1 else a)
        elif name in ("DIV", "FLOORDIV") and (name == "DIV" or self.type_of(a) == Type.INT):
            result = a if last == 1 else None
            # What depends on the score is rounded already, and a product takes a tenth of the time.
            is_rounded = name == "DIV" and self._of_score[a]
            if result is None and last is not None and is_rounded and 1e-30 < abs(last) < 1e30:
                return self.multiply(a, self.number(1 / last))
        elif name == "TO_FLOAT":
            # Most integers are sums of indices: a query and a key are converted once each, not for each pair.
            inner = self.instructions[a]
            if inner.name in ("ADD", "SUB", "ABS") and all(
                map(self._is_exact, [a, *inner.operands])
            ):
                return self.emit(inner.name, *map(self.to_float, inner.operands))
        elif name == "POW":
            if last in (1, 2, 3) and first is None:
                squared = a if last == 1 else self.emit("SQUARE", a)
                result = squared if last != 3 else self.multiply(squared, a)
        elif name in ("MIN", "MAX"):
            if a == b:
                result = a
            elif self.type_of(a) == Type.INT:
                (lo, hi), (low, high) = self._ranges[a], self._ranges[b]
                if hi <= low:
                    result = a if name == "MIN" else b
                elif high <= lo:
                    result = b if name == "MIN" else a
        elif name in ("AND", "OR"):
            if a == b:
                result = a
            elif self.type_of(a) == Type.BOOL:
                for one, other in ((first, b), (last, a)):
                    if one is not None:
                        passes = bool(one) == (name == "AND")
                        result = other if passes else self.constant(one, Type.BOOL)
        elif name in ("NEG", "NOT", "ABS", "RELU"):
            inner = self.instructions[a]
            if inner.name == name:
                result = inner.a if name in ("NEG", "NOT") else a
        return result


def finish(
    instructions: Sequence[Instruction], outputs: Sequence[int]
) -> tuple[tuple[Instruction, ...], list[int]]:
    """Return the instructions that the outputs need, and the new numbers of the outputs; -1 stays."""
    needed = {x for x in outputs if x >= 0}
    for number in range(len(instructions) - 1, -1, -1):
        if number in needed:
            needed.update(instructions[number].operands)
    places = {old: new for new, old in enumerate(sorted(needed))}
    kept: list[Instruction] = []
    for old in sorted(needed):
        x = instructions[old]
        kept.append(with_operands(x, [places[y] for y in x.operands]))
    return tuple(kept), [places.get(x, -1) for x in outputs]
