"""The derivative of a program with respect to its score and its captured arrays, as a second list of instructions."""

from __future__ import annotations

import functools

from heed.ops.score_mod._builder import Builder, finish
from heed.ops.score_mod.bounds import Place
from heed.ops.score_mod.operations import LOAD, OPERATIONS, SCORE, UPSTREAM, Type
from heed.ops.score_mod.program import NONE, Derivative, Program, Scatter


@functools.lru_cache(maxsize=256)
def derive(program: Program) -> Derivative:
    """Return the derivative of the program's score: backwards through its values, sums shared."""
    if program.score < 0:
        return Derivative((), NONE, ())
    builder = Builder(Place())
    copies: list[int] = []
    for x in program.instructions:
        copies.append(builder.copy(x, [copies[number] for number in x.operands]))
    gradients: dict[int, int] = {program.score: builder.leaf("UPSTREAM")}
    scatters: list[Scatter] = []
    score_gradient = NONE

    def add(number: int, gradient: int) -> None:
        if program.instructions[number].type == Type.FLOAT:
            known = gradients.get(number)
            gradients[number] = gradient if known is None else builder.add(known, gradient)

    for number in range(program.score, -1, -1):
        gradient = gradients.pop(number, None)
        if gradient is None:
            continue
        x = program.instructions[number]
        if x.opcode == SCORE:
            score_gradient = gradient
        elif x.opcode == LOAD:
            scatters.append(Scatter(x.capture, copies[x.a], gradient))
        elif x.name == "WHERE":
            zero = builder.number(0.0)
            condition, yes, no = x.operands
            add(yes, builder.where(copies[condition], gradient, zero))
            add(no, builder.where(copies[condition], zero, gradient))
        elif x.opcode > UPSTREAM and (slopes := OPERATIONS[x.name].slopes) is not None:
            found = slopes(builder, *(copies[y] for y in x.operands), copies[number])
            for operand, slope in zip(x.operands, found, strict=True):
                if slope is not None and builder.value_of(slope) != 0:
                    add(operand, builder.multiply(gradient, slope))
    wanted = [score_gradient, *(y for x in scatters for y in (x.position, x.gradient))]
    instructions, places = finish(builder.instructions, wanted)
    rest = iter(places[1:])
    return Derivative(
        instructions,
        places[0],
        tuple(Scatter(x.capture, next(rest), next(rest)) for x in scatters),
    )
