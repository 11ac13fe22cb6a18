"""Interval arithmetic: the range of each value of a program over ranges of batch entries, heads, queries and keys.

A range holds every number that the kernels may compute: ranges of floats are widened by their rounding. Ends are
arrays, so that many blocks are judged at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from heed.ops.score_mod.operations import (
    ANY_BOOL,
    ANY_FLOAT,
    ANY_INT,
    BATCH,
    CONSTANT,
    HEAD,
    KEY,
    OPERATIONS,
    QUERY,
    Range,
    Type,
)
from heed.ops.score_mod.program import Instruction, Program

_FAR = 2.0**31 - 1
_ANY = {Type.FLOAT: ANY_FLOAT, Type.INT: ANY_INT, Type.BOOL: ANY_BOOL}
# Results of floats that the kernels do not round.
_EXACT = frozenset("NEG ABS SIGN RELU FLOOR CEIL ROUND MIN MAX WHERE".split())
_ON_BITS = frozenset("AND OR XOR NOT SHL SHR".split())
# Eight units in the last place of float32, and its smallest numbers.
_RELATIVE, _ABSOLUTE = 2.0**-20, 1e-37
_EXACT_INTEGERS = 2.0**24


class Place(NamedTuple):
    """Ranges of indices, both ends included: numbers, or arrays of one shape for several blocks."""

    batch: Range = (0.0, _FAR)
    head: Range = (0.0, _FAR)
    query: Range = (0.0, _FAR)
    key: Range = (0.0, _FAR)

    def of(self, opcode: int) -> Range | None:
        """Return the range of an index; None for other leaves."""
        return {BATCH: self.batch, HEAD: self.head, QUERY: self.query, KEY: self.key}.get(opcode)


def indices(length: int | None) -> Range:
    """Return the range of the indices of an axis; None if its length is not known."""
    return 0.0, _FAR if length is None else max(0.0, length - 1.0)


def range_of(
    instruction: Instruction, operands: Sequence[Range], types: Sequence[Type], place: Place
) -> Range:
    """Return the range of a value.

    Args:
        instruction: which value.
        operands, types: the ranges and types of its operands.
        place: the ranges of the indices.
    """
    unknown, kind = _ANY[instruction.type], instruction.type
    if instruction.opcode == CONSTANT:
        number = np.array(instruction.constant)
        if np.isnan(number):
            return unknown
        exact = kind != Type.FLOAT or float(np.float32(number)) == number
        return (number, number) if exact else _widen((number, number))
    if (index := place.of(instruction.opcode)) is not None:
        return index
    name = instruction.name
    operation = OPERATIONS.get(name)
    if operation is None or operation.bounds is None:
        return unknown
    if name in _ON_BITS and kind != Type.BOOL:
        return unknown
    with np.errstate(all="ignore"):
        found = operation.bounds(*operands)
    if found is None:
        return unknown
    lo, hi = found
    lost = np.isnan(lo) | np.isnan(hi)
    if name != "WHERE":
        for (low, high), one in zip(operands, types, strict=True):
            if one == Type.FLOAT:  # may be NaN
                lost = lost | ((low == -np.inf) & (high == np.inf))
    if kind == Type.INT:
        lost = lost | (lo < ANY_INT[0]) | (hi > ANY_INT[1])
    found = np.where(lost, unknown[0], lo), np.where(lost, unknown[1], hi)
    if kind == Type.FLOAT and name not in _EXACT:
        return _widen(found, _EXACT_INTEGERS if name == "TO_FLOAT" else 0.0)
    return found


def _widen(x: Range, exact: float = 0.0) -> Range:
    lo, hi = (np.where(np.abs(end) <= exact, 0.0, np.abs(end) * _RELATIVE + _ABSOLUTE) for end in x)
    return x[0] - np.where(np.isfinite(x[0]), lo, 0.0), x[1] + np.where(np.isfinite(x[1]), hi, 0.0)


def ranges(program: Program, place: Place) -> list[Range]:
    """Return the ranges of all values of a program."""
    found: list[Range] = []
    for x in program.instructions:
        operands = [found[number] for number in x.operands]
        types = [program.instructions[number].type for number in x.operands]
        found.append(range_of(x, operands, types, place))
    return found


def may_keep(program: Program, place: Place) -> tuple[Any, Any]:
    """Return for each block whether some pair of it may count, and whether surely all do: booleans."""
    found = ranges(program, place)
    some: Any = np.array(True)
    every: Any = np.array(True)
    if program.keep >= 0:
        lo, hi = found[program.keep]
        some, every = hi > 0, lo > 0
    if program.score >= 0:
        lo, hi = found[program.score]
        some, every = some & (hi > -1e30), every & (lo > -1e30)
    shape = np.broadcast_shapes(*(np.shape(end) for pair in place for end in pair))
    return np.broadcast_to(some, shape), np.broadcast_to(every, shape)
