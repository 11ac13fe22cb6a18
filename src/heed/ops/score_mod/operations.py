"""The operations of programs: the only list of them in Python. Its twin is in `native/kernels/`.

A new operation is an entry of `OPERATIONS`, the name of a function of Keras in `_lowering.py`, and an entry of the
list in the core: see docs/extending.md.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

# A closed range of numbers: its ends as arrays of float64. Unknown floats, which may be NaN, are (-inf, inf).
Range = tuple[Any, Any]


class Type(enum.IntEnum):
    """The type of a value: the core's numbers."""

    FLOAT = 0
    INT = 1
    BOOL = 2


# Leaves, in the order of `heed_opcode`; the operations follow.
_LEAVES = ("CONSTANT", "SCORE", "BATCH", "HEAD", "QUERY", "KEY", "LOAD", "UPSTREAM")
CONSTANT, SCORE, BATCH, HEAD, QUERY, KEY, LOAD, UPSTREAM = range(8)

_INT = np.iinfo(np.int32)
ANY_FLOAT: Range = (np.array(-np.inf), np.array(np.inf))
ANY_INT: Range = (np.array(float(_INT.min)), np.array(float(_INT.max)))
ANY_BOOL: Range = (np.array(0.0), np.array(1.0))


class Operation(NamedTuple):
    """An operation of elements."""

    # its result, from a namespace of functions (see `evaluation.py`) and the operands
    compute: Callable[..., Any]
    result: Type | None = None  # the type of the result; None for that of the operands
    # its derivatives. From a builder, the operands and the result, one float value for each operand, with which its
    # upstream gradient is multiplied; None for an operation that is flat everywhere.
    slopes: Callable[..., Sequence[int | None]] | None = None
    # the range of the result from those of the operands, or None where nothing is known of it. Ranges of floats are
    # widened afterwards by the kernel's rounding.
    bounds: Callable[..., Range | None] | None = None

    @property
    def arity(self) -> int:
        """The number of operands."""
        return len(inspect.signature(self.compute).parameters) - 1


def _monotone(function: Callable[[Any], Any]) -> Callable[[Range], Range]:
    return lambda x: (function(x[0]), function(x[1]))


def _falling(x: Range) -> Range:
    return -x[1], -x[0]


def _absolute(x: Range) -> Range:
    lo, hi = x
    crosses = (lo <= 0) & (hi >= 0)
    return np.where(crosses, 0.0, np.minimum(abs(lo), abs(hi))), np.maximum(abs(lo), abs(hi))


def _corners(function: Callable[[Any, Any], Any]) -> Callable[[Range, Range], Range]:
    def bounds(x: Range, y: Range) -> Range:
        corners = [function(a, b) for a in x for b in y]
        return np.minimum.reduce(corners), np.maximum.reduce(corners)

    return bounds


def _where_positive(function: Callable[[Any], Any], least: float) -> Callable[[Range], Range]:
    """Return a rising function that is NaN below `least`."""

    def bounds(x: Range) -> Range:
        known = x[0] >= least
        safe = np.maximum(x, least)
        return np.where(known, function(safe[0]), -np.inf), np.where(
            known, function(safe[1]), np.inf
        )

    return bounds


def _quotient(function: Callable[[Any, Any], Any]) -> Callable[[Range, Range], Range]:
    def bounds(x: Range, y: Range) -> Range:
        zero = (y[0] <= 0) & (y[1] >= 0)
        safe: Range = (np.where(zero, 1.0, y[0]), np.where(zero, 1.0, y[1]))
        lo, hi = _corners(function)(x, safe)
        return np.where(zero, -np.inf, lo), np.where(zero, np.inf, hi)

    return bounds


def _modulo(x: Range, y: Range) -> Range:
    # Unknown unless the divisor is one positive number and no multiple of it lies in between.
    lo, hi = x
    step = y[0]
    one = (y[0] == y[1]) & (step > 0) & np.isfinite(lo) & np.isfinite(hi)
    safe = np.where(one, step, 1.0)
    low, high = (np.where(np.isfinite(end), end, 0.0) for end in x)
    same = np.floor(low / safe) == np.floor(high / safe)
    least = np.where(same, low - np.floor(low / safe) * safe, 0.0)
    most = np.where(same, high - np.floor(high / safe) * safe, safe)
    return np.where(one, least, -np.inf), np.where(one, most, np.inf)


def _less(x: Range, y: Range) -> Range:
    return 1.0 * (x[1] < y[0]), 1.0 * np.logical_not(x[0] >= y[1])


def _less_equal(x: Range, y: Range) -> Range:
    return 1.0 * (x[1] <= y[0]), 1.0 * np.logical_not(x[0] > y[1])


def _equal(x: Range, y: Range) -> Range:
    apart = (x[1] < y[0]) | (y[1] < x[0])
    same = (x[0] == x[1]) & (y[0] == y[1]) & (x[0] == y[0])
    return 1.0 * same, 1.0 * np.logical_not(apart)


def _opposite(bounds: Callable[..., Range]) -> Callable[..., Range]:
    def flipped(*operands: Range) -> Range:
        lo, hi = bounds(*operands)
        return 1 - hi, 1 - lo

    return flipped


def _swapped(bounds: Callable[[Range, Range], Range]) -> Callable[[Range, Range], Range]:
    return lambda x, y: bounds(y, x)


def _and(x: Range, y: Range) -> Range:
    return np.minimum(x[0], y[0]), np.minimum(x[1], y[1])


def _or(x: Range, y: Range) -> Range:
    return np.maximum(x[0], y[0]), np.maximum(x[1], y[1])


def _choice(condition: Range, x: Range, y: Range) -> Range:
    yes, no = condition[0] >= 1, condition[1] <= 0
    lo = np.where(yes, x[0], np.where(no, y[0], np.minimum(x[0], y[0])))
    return lo, np.where(yes, x[1], np.where(no, y[1], np.maximum(x[1], y[1])))


def _truth(x: Range) -> Range:
    lo, hi = x
    return 1.0 * ((lo > 0) | (hi < 0)), 1.0 * np.logical_not((lo == 0) & (hi == 0))


# In the order of `heed_opcode`.
OPERATIONS: dict[str, Operation] = {
    "NEG": Operation(lambda m, x: -x, slopes=lambda b, x, y: [b.number(-1.0)], bounds=_falling),
    "ABS": Operation(
        lambda m, x: m.abs(x), slopes=lambda b, x, y: [b.emit("SIGN", x)], bounds=_absolute
    ),
    "SIGN": Operation(lambda m, x: m.sign(x), bounds=_monotone(np.sign)),
    "SQRT": Operation(
        lambda m, x: m.sqrt(x),
        slopes=lambda b, x, y: [b.divide(b.number(0.5), y)],
        bounds=_where_positive(np.sqrt, 0.0),
    ),
    "RSQRT": Operation(
        lambda m, x: m.rsqrt(x),
        slopes=lambda b, x, y: [b.multiply(b.number(-0.5), b.divide(y, x))],
    ),
    "EXP": Operation(lambda m, x: m.exp(x), slopes=lambda b, x, y: [y], bounds=_monotone(np.exp)),
    "EXPM1": Operation(
        lambda m, x: m.expm1(x),
        slopes=lambda b, x, y: [b.add(y, b.number(1.0))],
        bounds=_monotone(np.expm1),
    ),
    "LOG": Operation(
        lambda m, x: m.log(x),
        slopes=lambda b, x, y: [b.emit("RECIPROCAL", x)],
        bounds=_where_positive(np.log, 0.0),
    ),
    "LOG1P": Operation(
        lambda m, x: m.log1p(x),
        slopes=lambda b, x, y: [b.emit("RECIPROCAL", b.add(x, b.number(1.0)))],
        bounds=_where_positive(np.log1p, -1.0),
    ),
    "LOG2": Operation(
        lambda m, x: m.log2(x),
        slopes=lambda b, x, y: [b.divide(b.number(1 / np.log(2.0)), x)],
        bounds=_where_positive(np.log2, 0.0),
    ),
    "TANH": Operation(
        lambda m, x: m.tanh(x),
        slopes=lambda b, x, y: [b.subtract(b.number(1.0), b.emit("SQUARE", y))],
        bounds=_monotone(np.tanh),
    ),
    "SIGMOID": Operation(
        lambda m, x: m.sigmoid(x),
        slopes=lambda b, x, y: [b.multiply(y, b.subtract(b.number(1.0), y))],
        bounds=lambda x: (np.zeros(np.shape(x[0])), np.ones(np.shape(x[0]))),
    ),
    "SOFTPLUS": Operation(
        lambda m, x: m.softplus(x),
        slopes=lambda b, x, y: [b.emit("SIGMOID", x)],
        bounds=_monotone(lambda x: np.logaddexp(x, 0.0)),
    ),
    "RELU": Operation(
        lambda m, x: m.relu(x),
        slopes=lambda b, x, y: [b.to_float(b.emit("GT", x, b.number(0.0)))],
        bounds=_monotone(lambda x: np.maximum(x, 0.0)),
    ),
    "SIN": Operation(lambda m, x: m.sin(x), slopes=lambda b, x, y: [b.emit("COS", x)]),
    "COS": Operation(
        lambda m, x: m.cos(x), slopes=lambda b, x, y: [b.emit("NEG", b.emit("SIN", x))]
    ),
    "ERF": Operation(
        lambda m, x: m.erf(x),
        slopes=lambda b, x, y: [
            b.multiply(
                b.number(2 / np.sqrt(np.pi)), b.emit("EXP", b.emit("NEG", b.emit("SQUARE", x)))
            )
        ],
    ),
    "FLOOR": Operation(lambda m, x: m.floor(x), bounds=_monotone(np.floor)),
    "CEIL": Operation(lambda m, x: m.ceil(x), bounds=_monotone(np.ceil)),
    "ROUND": Operation(lambda m, x: m.round(x), bounds=_monotone(np.round)),
    "SQUARE": Operation(
        lambda m, x: x * x,
        slopes=lambda b, x, y: [b.multiply(b.number(2.0), x)],
        bounds=lambda x: _monotone(np.square)(_absolute(x)),
    ),
    "RECIPROCAL": Operation(
        lambda m, x: 1 / x,
        slopes=lambda b, x, y: [b.emit("NEG", b.emit("SQUARE", y))],
        bounds=lambda x: _quotient(np.divide)((np.array(1.0), np.array(1.0)), x),
    ),
    "ADD": Operation(
        lambda m, x, y: x + y,
        slopes=lambda b, x, y, z: [b.number(1.0), b.number(1.0)],
        bounds=lambda x, y: (x[0] + y[0], x[1] + y[1]),
    ),
    "SUB": Operation(
        lambda m, x, y: x - y,
        slopes=lambda b, x, y, z: [b.number(1.0), b.number(-1.0)],
        bounds=lambda x, y: (x[0] - y[1], x[1] - y[0]),
    ),
    "MUL": Operation(
        lambda m, x, y: x * y, slopes=lambda b, x, y, z: [y, x], bounds=_corners(np.multiply)
    ),
    "DIV": Operation(
        lambda m, x, y: x / y,
        slopes=lambda b, x, y, z: [
            b.emit("RECIPROCAL", y),
            b.emit("NEG", b.divide(z, y)),
        ],
        bounds=_quotient(np.divide),
    ),
    "POW": Operation(
        lambda m, x, y: m.power(x, y),
        # d/dy of 0^y is 0, which x^y log(x) does not say.
        slopes=lambda b, x, y, z: [
            b.multiply(y, b.emit("POW", x, b.subtract(y, b.number(1.0)))),
            b.where(
                b.emit("EQ", x, b.number(0.0)),
                b.number(0.0),
                b.multiply(z, b.emit("LOG", x)),
            ),
        ],
    ),
    "MIN": Operation(
        lambda m, x, y: m.minimum(x, y),
        slopes=lambda b, x, y, z: b.share(b.emit("LT", x, y), b.emit("EQ", x, y)),
        bounds=_and,
    ),
    "MAX": Operation(
        lambda m, x, y: m.maximum(x, y),
        slopes=lambda b, x, y, z: b.share(b.emit("GT", x, y), b.emit("EQ", x, y)),
        bounds=_or,
    ),
    "FLOORDIV": Operation(
        lambda m, x, y: m.floor_divide(x, y), bounds=_quotient(lambda x, y: np.floor(x / y))
    ),
    "MOD": Operation(
        lambda m, x, y: m.mod(x, y),
        slopes=lambda b, x, y, z: [
            b.number(1.0),
            b.emit("NEG", b.emit("FLOORDIV", x, y)),
        ],
        bounds=_modulo,
    ),
    "AND": Operation(lambda m, x, y: x & y, bounds=_and),
    "OR": Operation(lambda m, x, y: x | y, bounds=_or),
    "XOR": Operation(lambda m, x, y: x ^ y, bounds=_opposite(_equal)),
    "NOT": Operation(lambda m, x: ~x, bounds=lambda x: (1 - x[1], 1 - x[0])),
    "SHL": Operation(lambda m, x, y: m.left_shift(x, y)),
    "SHR": Operation(lambda m, x, y: m.right_shift(x, y)),
    "EQ": Operation(lambda m, x, y: x == y, Type.BOOL, bounds=_equal),
    "NE": Operation(lambda m, x, y: x != y, Type.BOOL, bounds=_opposite(_equal)),
    "LT": Operation(lambda m, x, y: x < y, Type.BOOL, bounds=_less),
    "LE": Operation(lambda m, x, y: x <= y, Type.BOOL, bounds=_less_equal),
    "GT": Operation(lambda m, x, y: x > y, Type.BOOL, bounds=_swapped(_less)),
    "GE": Operation(lambda m, x, y: x >= y, Type.BOOL, bounds=_swapped(_less_equal)),
    "WHERE": Operation(lambda m, c, x, y: m.where(c, x, y), bounds=_choice),
    "TO_FLOAT": Operation(lambda m, x: m.to_float(x), Type.FLOAT, bounds=lambda x: x),
    "TO_INT": Operation(lambda m, x: m.to_int(x), Type.INT, bounds=_monotone(np.trunc)),
    "TO_BOOL": Operation(lambda m, x: x != 0, Type.BOOL, bounds=_truth),
    "ISNAN": Operation(lambda m, x: m.isnan(x), Type.BOOL),
    "ISINF": Operation(lambda m, x: m.isinf(x), Type.BOOL),
    "ISFINITE": Operation(lambda m, x: m.isfinite(x), Type.BOOL),
}

NAMES: tuple[str, ...] = (*_LEAVES, *OPERATIONS)
NUMBERS: dict[str, int] = {name: number for number, name in enumerate(NAMES)}
# Where a finite operand gives a nonfinite result or derivative.
SINGULAR = frozenset("SQRT RSQRT EXP EXPM1 LOG LOG1P LOG2 RECIPROCAL DIV POW FLOORDIV MOD".split())
