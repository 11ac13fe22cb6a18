"""`Program`: a traced function of scores or pairs as plain data, hashable and without tensors."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from heed.ops.score_mod.operations import NAMES, NUMBERS, OPERATIONS, Type

# Limits of the core.
MOST_INSTRUCTIONS = 256
MOST_CAPTURES = 16
# `heed_instruction` in `native/include/heed.h`.
INSTRUCTION = np.dtype(
    {
        "names": ["opcode", "type", "capture", "a", "b", "c", "constant"],
        "formats": ["<u2", "u1", "u1", "<i4", "<i4", "<i4", "<f8"],
        "offsets": [0, 2, 3, 4, 8, 12, 16],
        "itemsize": 24,
    }
)
NONE = -1  # stands for "no value" where a program names one


class Instruction(NamedTuple):
    """One value, computed from earlier ones."""

    opcode: int  # a number of `NAMES`
    type: Type  # of the result
    capture: int = 0  # of a LOAD: which array
    # `a`, `b`, `c`: the numbers of the operands
    a: int = 0
    b: int = 0
    c: int = 0
    constant: float = 0.0  # the value of a CONSTANT

    @property
    def name(self) -> str:
        """The name of its operation."""
        return NAMES[self.opcode]

    @property
    def operands(self) -> tuple[int, ...]:
        """The numbers of its operands."""
        return (self.a, self.b, self.c)[: _ARITIES[self.opcode]]


# By opcode. Counted here, as `torch.compile` cannot trace how.
_ARITIES = tuple(OPERATIONS[x].arity if x in OPERATIONS else int(x == "LOAD") for x in NAMES)


def with_operands(x: Instruction, operands: Sequence[int]) -> Instruction:
    """Return an instruction with other operands."""
    a, b, c = (*operands, 0, 0, 0)[:3]
    return x._replace(a=a, b=b, c=c)


class Scatter(NamedTuple):
    """A gradient of a captured array: at a position (a value of type INT), a value of type FLOAT is added."""

    capture: int
    position: int
    gradient: int


class Program(NamedTuple):
    """Instructions and what they result in."""

    instructions: tuple[Instruction, ...]  # in order; each uses earlier ones only
    captures: tuple[Type, ...] = ()  # the types of the captured arrays
    score: int = NONE  # the number of the modified score, `NONE` if it is not modified
    keep: int = NONE  # the number of the boolean that says whether a pair counts, `NONE` for all

    def to_text(self) -> str:
        """Return the program as text, which `from_text` reads."""
        rows = [
            [x.name, int(x.type), x.capture, x.a, x.b, x.c, x.constant] for x in self.instructions
        ]
        return json.dumps([rows, [*map(int, self.captures)], self.score, self.keep])

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def from_text(text: str) -> Program:
        """Return the program of a text from `to_text`.

        Raises:
            ValueError: if the text is none.
        """
        try:
            rows, captures, score, keep = json.loads(text)
            instructions = tuple(
                Instruction(NUMBERS[name], Type(kind), *numbers) for name, kind, *numbers in rows
            )
            return Program(instructions, tuple(map(Type, captures)), score, keep)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"A score function must be text as heed writes it. Received: {text[:60]!r}"
            ) from error


class Derivative(NamedTuple):
    """The derivative of a program's score, a list of instructions of its own."""

    # with UPSTREAM, the gradient of the modified score, as a further leaf
    instructions: tuple[Instruction, ...]
    score_gradient: int  # the number of the gradient of the score; `NONE` for 0
    scatters: tuple[Scatter, ...]  # the gradients of the captured arrays of floats


def to_bytes(instructions: Sequence[Instruction]) -> bytes:
    """Return instructions as an array of `heed_instruction`."""
    return np.array([tuple(x) for x in instructions], INSTRUCTION).tobytes()


def from_bytes(data: bytes) -> tuple[Instruction, ...]:
    """Return the instructions of `to_bytes`."""
    rows: Any = np.frombuffer(data, INSTRUCTION).tolist()
    return tuple(Instruction(row[0], Type(row[1]), *row[2:]) for row in rows)
