"""Makes programs of programs: for known lengths, for a block of a larger attention, or several as one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from heed.ops.score_mod._builder import Builder, finish
from heed.ops.score_mod.bounds import Place
from heed.ops.score_mod.operations import BATCH, HEAD, KEY, LOAD, QUERY, Type
from heed.ops.score_mod.program import NONE, Instruction, Program

# Makes the value of a leaf, or returns None for one that stays.
_Leaf = Callable[[Builder, Instruction], int | None]


@functools.lru_cache(maxsize=256)
def specialize(program: Program, place: Place) -> Program:
    """Return the program for known ranges of indices, without the operations that do nothing there.

    Args:
        program: any.
        place: with ends that are numbers.
    """
    return _rewrite(program, Builder(place))


def shift(program: Program, query: int | Type, key: int | Type) -> Program:
    """Return the program of a block whose queries and keys count from 0.

    Args:
        program: of the whole attention.
        query, key: the indices of the first ones; `Type.INT` for a further captured array () that holds it.
    """
    captures = list(program.captures)
    sources: dict[int, int] = {}
    for opcode, begin in ((QUERY, query), (KEY, key)):
        if isinstance(begin, Type):
            sources[opcode] = len(captures)
            captures.append(Type.INT)

    def leaf(builder: Builder, x: Instruction) -> int | None:
        if x.opcode not in (QUERY, KEY):
            return None
        begin = query if x.opcode == QUERY else key
        if isinstance(begin, Type):
            zero = builder.constant(0, Type.INT)
            first = builder.load(sources[x.opcode], Type.INT, zero)
        else:
            first = builder.constant(begin, Type.INT)
        return builder.add(builder.leaf(x.name), first)

    return _rewrite(program._replace(captures=tuple(captures)), Builder(Place()), leaf)


@functools.lru_cache(maxsize=256)
def join(programs: tuple[Program, ...]) -> Program:
    """Return one program of several: the last modified score, and the pairs that all of them keep.

    The captured arrays are those of all programs, one after the other.
    """
    builder = Builder(Place())
    captures: list[Type] = []
    score = keep = NONE
    for program in programs:
        first = len(captures)
        captures += program.captures
        moved = [
            x._replace(capture=x.capture + first) if x.opcode == LOAD else x
            for x in program.instructions
        ]
        numbers = _copy(builder, program._replace(instructions=tuple(moved)))
        score = _of(numbers, program.score) if program.score >= 0 else score
        if program.keep >= 0:
            kept = numbers[program.keep]
            keep = kept if keep < 0 else builder.emit("AND", keep, kept)
    return _finish(builder, captures, score, keep)


def of_score(program: Program) -> Program:
    """Return the program of the score alone, with all captured arrays."""
    return specialize(program._replace(keep=NONE), Place())


def of_keep(program: Program) -> Program:
    """Return the program of the kept pairs alone, with all captured arrays."""
    return specialize(program._replace(score=NONE), Place())


def load_once(program: Program) -> tuple[Program, tuple[int, ...]]:
    """Return a program that reads each captured array in one place, and which of the known ones each is."""
    sources: list[int] = []
    instructions = []
    for x in program.instructions:
        if x.opcode == LOAD:
            sources.append(x.capture)
            x = x._replace(capture=len(sources) - 1)
        instructions.append(x)
    captures = tuple(program.captures[source] for source in sources)
    return program._replace(instructions=tuple(instructions), captures=captures), tuple(sources)


def uses(program: Program) -> tuple[bool, bool]:
    """Return whether anything depends on the batch entry, and on the head."""
    opcodes = {x.opcode for x in program.instructions}
    return BATCH in opcodes, HEAD in opcodes


def _copy(builder: Builder, program: Program, leaf: _Leaf | None = None) -> list[int]:
    numbers: list[int] = []
    for x in program.instructions:
        replaced = None if leaf is None else leaf(builder, x)
        if replaced is None:
            replaced = builder.copy(x, [numbers[number] for number in x.operands])
        numbers.append(replaced)
    return numbers


def _rewrite(program: Program, builder: Builder, leaf: _Leaf | None = None) -> Program:
    numbers = _copy(builder, program, leaf)
    outputs = _of(numbers, program.score), _of(numbers, program.keep)
    return _finish(builder, program.captures, *outputs)


def _of(numbers: Sequence[int], value: int) -> int:
    return numbers[value] if value >= 0 else NONE


def _finish(builder: Builder, captures: Sequence[Type], score: int, keep: int) -> Program:
    instructions, places = finish(builder.instructions, (score, keep))
    return Program(instructions, tuple(captures), *places)
