"""Random programs, as strategies of hypothesis, and what they give in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from heed.ops.score_mod._builder import Builder, finish
from heed.ops.score_mod.bounds import Place, indices
from heed.ops.score_mod.evaluation import NUMPY, evaluate
from heed.ops.score_mod.operations import Type
from heed.ops.score_mod.program import NONE, Derivative, Program

# Sizes of (batch, head, query, key), and of the captured arrays.
SIZES = (2, 3, 5, 6)
FLOATS, INTEGERS = (7,), (4,)
UNARY = "NEG ABS TANH SIGMOID SOFTPLUS RELU SIN COS ERF SQUARE EXPM1".split()
BINARY = "ADD SUB MUL MIN MAX".split()
INT_BINARY = "ADD SUB MUL MIN MAX FLOORDIV MOD AND OR XOR".split()
COMPARISONS = "EQ NE LT LE GT GE".split()
INDICES = "BATCH HEAD QUERY KEY".split()


def place() -> Place:
    """Return the ranges of the indices."""
    return Place(*map(indices, SIZES))


class Grammar:
    """Draws values of a program of limited depth."""

    def __init__(self, draw: Any, with_score: bool = True, ranges: Place | None = None):
        self.draw, self.with_score = draw, with_score
        self.builder = Builder(place() if ranges is None else ranges)

    def _choose(self, options: list[str]) -> str:
        return self.draw(st.sampled_from(options))

    def number(self, depth: int) -> int:
        """Return a float."""
        b = self.builder
        leaf = ["constant", "load", "index", *["score"] * (3 * self.with_score)]
        kind = self._choose(leaf if depth == 0 else ["unary", "binary", "binary", "where", *leaf])
        if kind == "constant":
            return b.number(self.draw(st.sampled_from([-1.5, -0.25, 0.5, 1.0, 2.0])))
        if kind == "load":
            return b.load(0, Type.FLOAT, self.integer(max(0, depth - 1)))
        if kind == "index":
            return b.multiply(b.number(0.25), b.to_float(self.integer(max(0, depth - 1))))
        if kind == "score":
            return b.leaf("SCORE")
        if kind == "unary":
            # Bounded, so that no chain of squares overflows.
            return b.emit("TANH", b.emit(self._choose(UNARY), self.number(depth - 1)))
        if kind == "where":
            return b.where(self.boolean(depth - 1), self.number(depth - 1), self.number(depth - 1))
        return b.emit(self._choose(BINARY), self.number(depth - 1), self.number(depth - 1))

    def integer(self, depth: int) -> int:
        """Return an integer."""
        b = self.builder
        kind = self._choose(
            ["constant", "leaf", "leaf"] if depth == 0 else ["leaf", "load", "binary", "binary"]
        )
        if kind == "constant":
            return b.constant(self.draw(st.integers(-7, 7)), Type.INT)
        if kind == "leaf":
            return b.leaf(self._choose(INDICES))
        if kind == "load":
            return b.load(1, Type.INT, self.integer(depth - 1))
        return b.emit(self._choose(INT_BINARY), self.integer(depth - 1), self.integer(depth - 1))

    def boolean(self, depth: int) -> int:
        """Return a boolean."""
        b = self.builder
        kind = self._choose(["integers"] if depth == 0 else ["integers", "numbers", "both", "not"])
        if kind == "integers":
            less = max(0, depth - 1)
            return b.emit(self._choose(COMPARISONS), self.integer(less), self.integer(less))
        if kind == "numbers":
            return b.emit(
                self._choose(COMPARISONS[2:]), self.number(depth - 1), self.number(depth - 1)
            )
        if kind == "both":
            return b.emit(
                self._choose(["AND", "OR", "XOR"]), self.boolean(depth - 1), self.boolean(depth - 1)
            )
        return b.emit("NOT", self.boolean(depth - 1))


@st.composite
def scores(draw: Any, depth: int = 4) -> Program:
    """Return programs that modify the score."""
    grammar = Grammar(draw)
    value = grammar.number(depth)
    instructions, places = finish(grammar.builder.instructions, [value, NONE])
    return Program(instructions, (Type.FLOAT, Type.INT), *places)


@st.composite
def masks(draw: Any, depth: int = 4, ranges: Place | None = None) -> Program:
    """Return programs that say which pairs count."""
    grammar = Grammar(draw, with_score=False, ranges=ranges)
    value = grammar.boolean(depth)
    instructions, places = finish(grammar.builder.instructions, [NONE, value])
    return Program(instructions, (Type.FLOAT, Type.INT), *places)


def captures(seed: int) -> list[Any]:
    """Return the arrays that these programs read."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=FLOATS), rng.integers(-6, 7, INTEGERS).astype("int32")]


def leaves(seed: int) -> dict[str, Any]:
    """Return all pairs, with random scores."""
    rng = np.random.default_rng(seed + 1)
    grid = np.meshgrid(*(np.arange(n, dtype="int32") for n in SIZES), indexing="ij", sparse=True)
    return {"SCORE": rng.normal(size=SIZES), **dict(zip(INDICES, grid, strict=True))}


def reference(program: Program, leaves: Mapping[str, Any], captures: Sequence[Any]) -> Any:
    """Return the modified score in NumPy."""
    with np.errstate(all="ignore"):
        return evaluate(program.instructions, NUMPY, leaves, captures)[program.score]


def reference_gradients(
    derivative: Derivative, leaves: Mapping[str, Any], captures: Sequence[Any]
) -> tuple[Any, Any]:
    """Return the gradients of the score and of the captured floats in NumPy."""
    with np.errstate(all="ignore"):
        values = evaluate(derivative.instructions, NUMPY, leaves, captures)
    score = values[derivative.score_gradient] if derivative.score_gradient >= 0 else 0.0
    table = np.zeros(FLOATS)
    for capture, position, gradient in derivative.scatters:
        assert capture == 0
        where = np.clip(np.broadcast_to(values[position], SIZES), 0, len(table) - 1)
        np.add.at(table, where, np.broadcast_to(values[gradient], SIZES))
    return np.broadcast_to(score, SIZES), table
