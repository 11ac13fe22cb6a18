"""How functions of scores and of pairs travel to the core: `HeedProgram` of `native/include/heed.h`, as int64.

`native/adapters/shared/call.h` reads them in `Form`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from heed.ops.score_mod.derivative import derive
from heed.ops.score_mod.operations import Type
from heed.ops.score_mod.program import (
    MOST_CAPTURES,
    MOST_INSTRUCTIONS,
    Derivative,
    Program,
    from_bytes,
    to_bytes,
)
from heed.ops.score_mod.rewriting import join

# `HEED_MAX_SCATTERS`.
MOST_SCATTERS = 64
# How many int64 an instruction takes.
_WORDS = 3


class ProgramHeader(NamedTuple):
    """`ProgramHeader` in `call.h`: values of the program, and how much there is of each that follows."""

    score: int
    keep: int
    score_gradient: int
    captures: int
    scatters: int
    forward: int
    derivative: int


class CapturedOperand(NamedTuple):
    """`CapturedOperand` in `call.h`."""

    type: int
    place: int


class ScatterWords(NamedTuple):
    """`ScatterWords` in `call.h`."""

    capture: int
    position: int
    gradient: int


class CoreProgram(NamedTuple):
    """The functions of a call, joined."""

    program: Program  # the modified score, and which pairs are kept
    places: tuple[int, ...]  # of its captured arrays among the operands of the call

    @property
    def derivative(self) -> Derivative:
        return derive(self.program)

    @property
    def trained(self) -> tuple[bool, ...]:
        of_scatters = {x.capture for x in self.derivative.scatters}
        return tuple(place in of_scatters for place in range(len(self.places)))

    def trained_places(self) -> list[int]:
        return [x for x, is_trained in zip(self.places, self.trained, strict=True) if is_trained]

    def to_words(self) -> tuple[int, ...]:
        """Return it as integers: `ProgramHeader` and what follows it in `call.h`."""
        return _to_words(self)

    @classmethod
    def from_words(cls, words: Sequence[int]) -> CoreProgram:
        return _from_words(tuple(int(x) for x in words))


def reasons_against(programs: tuple[Program, ...]) -> list[str]:
    """Return why the core cannot run these functions in one call, as sentences."""
    if not programs:
        return []
    program = join(programs)
    derivative = derive(program)
    count = max(len(program.instructions), len(derivative.instructions))
    reasons = []
    if count > MOST_INSTRUCTIONS:
        reasons.append(
            f"the functions of score and mask, or their derivatives, need {count} operations, "
            f"the native kernels take {MOST_INSTRUCTIONS}"
        )
    if (count := len(program.captures)) > MOST_CAPTURES:
        reasons.append(
            f"the functions of score and mask capture {count} arrays, the native kernels take {MOST_CAPTURES}"
        )
    if (count := len(derivative.scatters)) > MOST_SCATTERS:
        reasons.append(
            f"the function of the score reads captured arrays {count} times, the native kernels take {MOST_SCATTERS}"
        )
    return reasons


@functools.lru_cache(maxsize=256)
def _to_words(x: CoreProgram) -> tuple[int, ...]:
    program, derivative = x.program, x.derivative
    header = ProgramHeader(
        program.score,
        program.keep,
        derivative.score_gradient,
        captures=len(program.captures),
        scatters=len(derivative.scatters),
        forward=len(program.instructions),
        derivative=len(derivative.instructions),
    )
    words: list[int] = [*header]
    for kind, place in zip(program.captures, x.places, strict=True):
        words += CapturedOperand(int(kind), place)
    for scatter in derivative.scatters:
        words += ScatterWords(*scatter)
    for instructions in (program.instructions, derivative.instructions):
        words += np.frombuffer(to_bytes(instructions), np.int64).tolist()
    return tuple(words)


@functools.lru_cache(maxsize=256)
def _from_words(words: tuple[int, ...]) -> CoreProgram:
    first = len(ProgramHeader._fields)
    header = ProgramHeader(*words[:first])
    end = first + len(CapturedOperand._fields) * header.captures
    captured = words[first:end]
    begin = end + len(ScatterWords._fields) * header.scatters
    data: Any = np.array(words[begin : begin + _WORDS * header.forward], np.int64).tobytes()
    kinds = tuple(map(Type, captured[::2]))
    return CoreProgram(Program(from_bytes(data), kinds, header.score, header.keep), captured[1::2])
