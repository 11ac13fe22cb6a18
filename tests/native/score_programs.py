"""Programs of scores (`HeedProgram`): how to write them, what they mean in NumPy, and random ones.

A program is a list of instructions, a value each; `Writer` appends them. `evaluate` computes all values of a list for
all pairs at once, as arrays that broadcast to (B, N, T, S).
"""

from __future__ import annotations

from ctypes import Structure, c_double, c_int32, c_uint8, c_uint16
from dataclasses import dataclass, field
from math import erf
from typing import Any

import numpy as np

from tests.native.structs import attention

FLOAT, INT, BOOL = range(3)
# In the order of `HeedOpcode`.
OPERATIONS = (
    "CONSTANT SCORE BATCH HEAD QUERY KEY LOAD UPSTREAM "
    "NEG ABS SIGN SQRT RSQRT EXP EXPM1 LOG LOG1P LOG2 TANH SIGMOID SOFTPLUS RELU SIN COS ERF FLOOR CEIL ROUND SQUARE "
    "RECIPROCAL ADD SUB MUL DIV POW MIN MAX FLOORDIV MOD AND OR XOR NOT SHL SHR EQ NE LT LE GT GE WHERE TO_FLOAT "
    "TO_INT TO_BOOL ISNAN ISINF ISFINITE"
).split()
TO_BOOLS = {"EQ", "NE", "LT", "LE", "GT", "GE", "TO_BOOL", "ISNAN", "ISINF", "ISFINITE"}
FIXED_TYPES = {"TO_FLOAT": FLOAT, "TO_INT": INT, **dict.fromkeys(TO_BOOLS, BOOL)}
MOST = 256


class Instruction(Structure):
    _fields_ = (
        ("opcode", c_uint16),
        ("type", c_uint8),
        ("capture", c_uint8),
        *((name, c_int32) for name in "abc"),
        ("constant", c_double),
    )


@dataclass
class Program:
    """Lists of instructions, their results (-1: none), and what they capture."""

    forward: list[Instruction] = field(default_factory=list)
    score: int = -1
    keep: int = -1
    captures: list[np.ndarray] = field(default_factory=list)
    derivative: list[Instruction] = field(default_factory=list)
    score_gradient: int = -1
    scatters: list[tuple[int, int, int]] = field(default_factory=list)

    def travel(self, compute: Any) -> tuple[Any, list[Any]]:
        """Return the structure, and all that must live as long as it."""
        kept: list[Any] = []

        def listed(instructions: list[Instruction]) -> Any:
            made = (Instruction * max(1, len(instructions)))(*instructions)
            kept.append(np.frombuffer(made, np.uint8).copy())  # the emulator shares arrays' memory
            return attention.Instructions(kept[-1].ctypes.data, len(instructions))

        captures = []
        for x in self.captures:
            kind = {"f": FLOAT, "i": INT, "b": BOOL}[x.dtype.kind]
            kept.append(np.ascontiguousarray(x, (compute, np.int32, np.uint8)[kind]))
            captures.append(attention.Capture(kept[-1].ctypes.data, x.size, kind))
        captured = (attention.Capture * max(1, len(captures)))(*captures)
        scatters = (attention.Scatter * max(1, len(self.scatters)))(*self.scatters)
        made = attention.Program(
            listed(self.forward),
            self.score,
            self.keep,
            len(captures),
            captured,
            listed(self.derivative),
            self.score_gradient,
            len(self.scatters),
            scatters,
        )
        kept += [captured, scatters, made]
        return made, kept


class Writer:
    """Appends instructions to a list."""

    def __init__(self, instructions: list[Instruction]) -> None:
        self.list = instructions

    def __call__(self, name: str, *operands: int) -> int:
        """Append an operation; return the number of its value."""
        types = [self.list[x].type for x in operands]
        kind = FIXED_TYPES.get(name, types[-1])
        a, b, c = (*operands, 0, 0, 0)[:3]
        return self._append(Instruction(OPERATIONS.index(name), kind, 0, a, b, c, 0.0))

    def leaf(self, name: str) -> int:
        kind = FLOAT if name in ("SCORE", "UPSTREAM") else INT
        return self._append(Instruction(OPERATIONS.index(name), kind))

    def constant(self, x: Any) -> int:
        kind = BOOL if isinstance(x, bool) else INT if isinstance(x, int) else FLOAT
        return self._append(Instruction(0, kind, 0, 0, 0, 0, float(x)))

    def load(self, capture: int, kind: int, index: int) -> int:
        return self._append(Instruction(OPERATIONS.index("LOAD"), kind, capture, index))

    def _append(self, instruction: Instruction) -> int:
        self.list.append(instruction)
        return len(self.list) - 1


def _floor_divide(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return np.floor(a / b)
    return np.where(b == 0, 0, a.astype(np.int64) // np.where(b == 0, 1, b)).astype(np.int32)


def _modulo(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return np.mod(a, b)
    return np.where(b == 0, 0, a.astype(np.int64) % np.where(b == 0, 1, b)).astype(np.int32)


def _power(a: Any, b: Any) -> Any:
    if a.dtype.kind == "f":
        return np.power(a, b)
    wide, powers = np.broadcast_arrays(a, b)
    out = np.empty(wide.shape, np.int32)
    for at in np.ndindex(wide.shape):
        x, n = int(wide[at]), int(powers[at])
        exact = (
            pow(x, n, 2**32)
            if n >= 0
            else (1 if x == 1 or (x == -1 and n % 2 == 0) else -(x == -1))
        )
        out[at] = np.uint32(exact % 2**32).astype(np.int32)
    return out


def _to_int(x: Any) -> Any:
    if x.dtype.kind != "f":
        return x.astype(np.int32)
    bounded = np.clip(np.nan_to_num(x.astype(np.float64), nan=0.0), -(2.0**31), 2.0**31 - 1)
    return np.trunc(bounded).astype(np.int32)


def _softplus(x: Any) -> Any:
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)


_ERF = np.vectorize(erf, otypes=[np.float64])
MEANINGS: dict[str, Any] = {
    "NEG": np.negative,
    "ABS": np.abs,
    "SIGN": np.sign,
    "SQRT": np.sqrt,
    "RSQRT": lambda x: 1 / np.sqrt(x),
    "EXP": np.exp,
    "EXPM1": np.expm1,
    "LOG": np.log,
    "LOG1P": np.log1p,
    "LOG2": np.log2,
    "TANH": np.tanh,
    "SIGMOID": lambda x: 1 / (1 + np.exp(-x)),
    "SOFTPLUS": _softplus,
    "RELU": lambda x: np.maximum(x, 0).astype(x.dtype),
    "SIN": np.sin,
    "COS": np.cos,
    "ERF": lambda x: _ERF(x).astype(x.dtype),
    "FLOOR": np.floor,
    "CEIL": np.ceil,
    "ROUND": np.round,
    "SQUARE": np.square,
    "RECIPROCAL": lambda x: 1 / x,
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "DIV": np.divide,
    "POW": _power,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "FLOORDIV": _floor_divide,
    "MOD": _modulo,
    "AND": np.bitwise_and,
    "OR": np.bitwise_or,
    "XOR": np.bitwise_xor,
    "NOT": np.invert,
    "SHL": lambda a, b: np.left_shift(a, b & 31),
    "SHR": lambda a, b: np.right_shift(a, b & 31),
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "WHERE": np.where,
    "TO_FLOAT": None,  # to the compute type
    "TO_INT": _to_int,
    "TO_BOOL": lambda x: x != 0,
    "ISNAN": np.isnan,
    "ISINF": np.isinf,
    "ISFINITE": np.isfinite,
}


def evaluate(
    instructions: list[Instruction],
    captures: list[np.ndarray],
    shape: tuple[int, int, int, int],
    compute: Any,
    score: np.ndarray | None = None,
    upstream: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Return all values of a list for scores (B, N, T, S). Without a score they have the compute type."""
    names = ("BATCH", "HEAD", "QUERY", "KEY")
    indices = {
        name: np.arange(shape[axis], dtype=np.int32).reshape(
            [-1 if i == axis else 1 for i in range(4)]
        )
        for axis, name in enumerate(names)
    }
    values: list[Any] = []
    with np.errstate(all="ignore"):
        for x in instructions:
            name = OPERATIONS[x.opcode]
            operands = [values[i] for i in (x.a, x.b, x.c)[: operands_of(name)]]
            if name == "CONSTANT":
                value: Any = np.array(x.constant).astype((compute, np.int32, bool)[x.type])
            elif name in indices:
                value = indices[name]
            elif name in ("SCORE", "UPSTREAM"):
                value = score if name == "SCORE" else upstream
            elif name == "LOAD":
                array = captures[x.capture].ravel()
                array = array.astype(compute) if x.type == FLOAT else array
                value = array[np.clip(operands[0], 0, array.size - 1)]
            elif name == "TO_FLOAT":
                value = (
                    operands[0] if operands[0].dtype.kind == "f" else operands[0].astype(compute)
                )
            else:
                value = MEANINGS[name](*operands)
            values.append(np.asarray(value))
    return values


def operands_of(name: str) -> int:
    """Return how many operands an operation has."""
    at = OPERATIONS.index(name)
    if name == "WHERE":
        return 3
    first, binary, last = (OPERATIONS.index(x) for x in ("NEG", "ADD", "WHERE"))
    if name in ("NOT", "LOAD") or first <= at < binary or at > last:
        return 1
    return 0 if at < first else 2


class Draw:
    """Draws random programs for scores of order 1, whose results float32 holds well.

    What jumps (comparisons, floor, ...) reads only numbers that are exact: indices, constants, captured integers.
    """

    SMOOTH = ("NEG", "TANH", "SIGMOID", "SOFTPLUS", "SIN", "COS", "ERF", "ABS", "RELU")

    def __init__(self, rng: np.random.Generator, shape: tuple[int, int, int, int]) -> None:
        self.rng, self.shape = rng, shape
        self.program = Program()
        batch, heads, queries, keys = shape
        self.program.captures = [
            rng.normal(size=queries + keys),
            rng.normal(size=(heads, queries, keys)),
            rng.normal(size=heads),
            rng.normal(size=()),
            rng.integers(0, 4, (batch, max(queries, keys))).astype(np.int32),
            rng.random((queries, keys)) < 0.7,
        ]

    def choose(self, *functions: Any) -> int:
        return functions[self.rng.integers(len(functions))]()

    def name(self, *names: str) -> str:
        return str(self.rng.choice(names))

    def integer(self, write: Writer, depth: int) -> int:
        """Return an int value."""
        write_leaf = lambda: write.leaf(self.name("BATCH", "HEAD", "QUERY", "KEY"))  # noqa: E731
        if depth <= 0:
            return self.choose(
                write_leaf, write_leaf, lambda: write.constant(int(self.rng.integers(-3, 9)))
            )

        def two() -> int:
            name = self.name(
                "ADD", "SUB", "MUL", "MIN", "MAX", "FLOORDIV", "MOD", "AND", "OR", "XOR"
            )
            return write(name, self.integer(write, depth - 1), self.integer(write, depth - 1))

        def one() -> int:
            return write(self.name("NEG", "ABS", "SIGN", "NOT"), self.integer(write, depth - 1))

        def load() -> int:
            return write.load(4, INT, self.integer(write, depth - 1))

        def distance() -> int:
            return write("SUB", write.leaf("KEY"), write.leaf("QUERY"))

        return self.choose(two, two, one, load, distance, write_leaf)

    def boolean(self, write: Writer, depth: int) -> int:
        """Return a bool value."""

        def compare() -> int:
            name = self.name("EQ", "NE", "LT", "LE", "GT", "GE")
            return write(name, self.integer(write, depth - 1), self.integer(write, depth - 1))

        def exact_floats() -> int:
            half = write.constant(float(self.rng.integers(-4, 9)) / 2)
            scaled = write("MUL", write("TO_FLOAT", self.integer(write, 1)), half)
            rounded = write(self.name("FLOOR", "CEIL", "ROUND", "ABS", "NEG", "SIGN"), scaled)
            return write(
                self.name("LT", "GE", "NE"),
                rounded,
                write.constant(float(self.rng.integers(-9, 9))),
            )

        if depth <= 0:
            return self.choose(compare, lambda: write.constant(bool(self.rng.random() < 0.7)))

        def two() -> int:
            name = self.name("AND", "OR", "XOR", "EQ")
            return write(name, self.boolean(write, depth - 1), self.boolean(write, depth - 1))

        return self.choose(
            compare,
            compare,
            exact_floats,
            two,
            lambda: write("NOT", self.boolean(write, depth - 1)),
            lambda: write("TO_BOOL", self.integer(write, depth - 1)),
            lambda: write.load(5, BOOL, self.integer(write, depth)),
        )

    def bounded(self, write: Writer, x: int) -> int:
        """Return a float value in [-1, 1]."""
        return write(self.name("TANH", "SIN", "COS", "ERF", "SIGMOID"), x)

    def float(self, write: Writer, depth: int, leaves: tuple[str | int, ...]) -> int:
        """Return a float value of order 1, of these leaves and earlier values among others."""

        def leaf() -> int:
            found = leaves[self.rng.integers(len(leaves))]
            return write.leaf(found) if isinstance(found, str) else found

        def load() -> int:
            capture = int(self.rng.integers(0, 4))
            return write.load(capture, FLOAT, self.integer(write, 2))

        if depth <= 0:
            return self.choose(leaf, leaf, load, lambda: write.constant(float(self.rng.normal())))

        def again() -> int:
            return self.float(write, depth - 1, leaves)

        def product() -> int:
            return write("MUL", self.bounded(write, again()), again())

        def quotient() -> int:
            return write(
                "DIV",
                again(),
                write("ADD", write.constant(1.0), write("SQUARE", self.bounded(write, again()))),
            )

        def special() -> int:
            within = self.bounded(write, again())
            shifted = write("ADD", within, write.constant(2.0))  # in [1, 3]
            name = self.name(
                "EXP", "EXPM1", "LOG", "LOG1P", "LOG2", "SQRT", "RSQRT", "RECIPROCAL", "SQUARE"
            )
            return self.choose(lambda: write(name, shifted), lambda: write("POW", shifted, within))

        return self.choose(
            leaf,
            load,
            product,
            quotient,
            special,
            lambda: write(self.name(*self.SMOOTH), again()),
            lambda: write(self.name("ADD", "SUB", "MIN", "MAX"), again(), again()),
            lambda: write("WHERE", self.boolean(write, 2), again(), again()),
            lambda: write("SIN", write("TO_FLOAT", self.integer(write, 2))),
        )

    def draw(self, depth: int = 4, keep: bool = True) -> Program:
        """Return a program with all its parts."""
        p, rng = self.program, self.rng
        write = Writer(p.forward)
        p.score = write("ADD", write.leaf("SCORE"), self.float(write, depth, ("SCORE",)))
        unhidden = len(p.forward)
        if rng.random() < 0.2:  # hides keys
            low = write.constant(float(rng.choice([-np.inf, -1e30, -2e30])))
            p.score = write("WHERE", self.boolean(write, 1), p.score, low)
        if keep and rng.random() < 0.6:
            p.keep = self.boolean(write, 3)
        back = Writer(p.derivative)
        both: tuple[str | int, ...] = ("SCORE", "UPSTREAM")
        # As Python writes it: with values of the forward pass.
        if len(p.forward) < 120 and rng.random() < 0.6:
            floats = [i for i in range(unhidden) if p.forward[i].type == FLOAT]
            p.derivative.extend(p.forward)
            both += tuple(int(i) for i in rng.choice(floats, min(6, len(floats)), replace=False))
        p.score_gradient = back("MUL", back.leaf("UPSTREAM"), self.float(back, depth - 1, both))
        for capture in rng.permutation(4)[: rng.integers(0, 5)]:
            gradient = back("MUL", back.leaf("UPSTREAM"), self.float(back, 2, both))
            p.scatters.append((int(capture), self.integer(back, 2), gradient))
        return p
