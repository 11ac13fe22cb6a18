"""The derivative of a program with respect to its score and its captured arrays, as a second list of instructions."""

from __future__ import annotations

import functools
from typing import NamedTuple

from heed.ops.score_mod._builder import Builder, finish
from heed.ops.score_mod.bounds import Place
from heed.ops.score_mod.operations import LOAD, OPERATIONS, SCORE, UPSTREAM, Type
from heed.ops.score_mod.program import NONE, Derivative, Program, Scatter

# Of a product of constants that is 1, in float64.
_ROUNDING = 1e-15


class _Scaled(NamedTuple):
    """A gradient that is still to be multiplied by a factor."""

    value: int
    factor: float


def _is_ordinary(factor: float) -> bool:
    """Return whether a factor may wait: neither it nor its products with gradients overflow or vanish."""
    return 1e-6 <= abs(factor) <= 1e6


@functools.lru_cache(maxsize=256)
def derive(program: Program) -> Derivative:
    """Return the derivative of the program's score: backwards through its values, sums shared."""
    if program.score < 0:
        return Derivative((), NONE, ())
    builder = Builder(Place())
    copies: list[int] = []
    for x in program.instructions:
        copies.append(builder.copy(x, [copies[number] for number in x.operands]))
    # Numbers that all pairs share are multiplied last: often they cancel, as those of `cap * tanh(score / cap)` do.
    gradients: dict[int, _Scaled] = {program.score: _Scaled(builder.leaf("UPSTREAM"), 1.0)}
    scatters: list[Scatter] = []
    score_gradient = NONE

    def whole(x: _Scaled) -> int:
        is_one = abs(x.factor - 1) < _ROUNDING
        return x.value if is_one else builder.multiply(x.value, builder.number(x.factor))

    def add(number: int, x: _Scaled) -> None:
        if program.instructions[number].type == Type.FLOAT:
            known = gradients.get(number)
            if known is not None:
                same = known.factor == x.factor
                ends = (known.value, x.value) if same else (whole(known), whole(x))
                x = _Scaled(builder.add(*ends), x.factor if same else 1.0)
            gradients[number] = x

    for number in range(program.score, -1, -1):
        gradient = gradients.pop(number, None)
        if gradient is None:
            continue
        x = program.instructions[number]
        if x.opcode == SCORE:
            score_gradient = whole(gradient)
        elif x.opcode == LOAD:
            scatters.append(Scatter(x.capture, copies[x.a], whole(gradient)))
        elif x.name == "WHERE":
            zero = builder.number(0.0)
            condition, yes, no = x.operands
            for operand, ends in ((yes, (gradient.value, zero)), (no, (zero, gradient.value))):
                add(operand, gradient._replace(value=builder.where(copies[condition], *ends)))
        elif x.opcode > UPSTREAM and (slopes := OPERATIONS[x.name].slopes) is not None:
            found = slopes(builder, *(copies[y] for y in x.operands), copies[number])
            for operand, slope in zip(x.operands, found, strict=True):
                if slope is None or (known := builder.value_of(slope)) == 0:
                    continue
                if known is not None and _is_ordinary(known * gradient.factor):
                    add(operand, gradient._replace(factor=gradient.factor * known))
                else:
                    add(operand, gradient._replace(value=builder.multiply(gradient.value, slope)))
    wanted = [score_gradient, *(y for x in scatters for y in (x.position, x.gradient))]
    instructions, places = finish(builder.instructions, wanted)
    rest = iter(places[1:])
    return Derivative(
        instructions,
        places[0],
        tuple(Scatter(x.capture, next(rest), next(rest)) for x in scatters),
    )
