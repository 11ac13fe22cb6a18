"""User-defined functions of scores in the core (`HeedProgram`), for each instruction set of this machine."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.native import core, fuzz_programs
from tests.native.core import DENSE, LENGTHS, LIBRARY, WINDOW
from tests.native.fuzz_programs import Expected, assert_close, small_program, tensors
from tests.native.score_programs import (
    FIXED_TYPES,
    FLOAT,
    INT,
    MEANINGS,
    OPERATIONS,
    Draw,
    Program,
    Writer,
    evaluate,
    operands_of,
)
from tests.slow import slow
from tests.tolerances import assert_statistics, assert_values

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="installed without the native library")


def value_program(name: str, kinds: list[int]) -> Program:
    """Return a program that gives a query's score the value of an operation on the query's captured numbers.

    NaN becomes 777, and an infinity 555 with its sign; an int x * 2^16 + y becomes x or, for odd keys, y.
    """
    p = Program()
    write = Writer(p.forward)
    x = write(name, *(write.load(i, kind, write.leaf("QUERY")) for i, kind in enumerate(kinds)))
    if p.forward[x].type == FLOAT:
        infinite = write("MUL", write("SIGN", x), write.constant(555.0))
        x = write("WHERE", write("ISINF", x), infinite, x)
        x = write("WHERE", write("ISNAN", x), write.constant(777.0), x)
    elif p.forward[x].type == INT:
        high = write("SHR", x, write.constant(16))
        low = write("AND", x, write.constant(65535))
        odd = write("EQ", write.leaf("BATCH"), write.constant(1))
        x = write("TO_FLOAT", write("WHERE", odd, low, high))
    else:
        x = write("TO_FLOAT", x)
    p.score = x
    return p


SOME_FLOATS = np.array([
    0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.0, 1e-3, -1e-3, 1e-20, 1e-40, 7.9, 88.0, -88.0, 90.0, -110.0,
    710.0, 1e5, -1e5, 1e10, -3e9, 3e38, np.inf, -np.inf, np.nan,
])  # fmt: skip
SOME_INTS = np.array([
    0, 1, -1, 2, 3, -3, 7, 31, 32, 33, 100, 65536, 2**31 - 1, -(2**31), -(2**31) + 1, 123456789
], np.int32)  # fmt: skip


def operation_inputs(name: str, kinds: list[int], rng: np.random.Generator) -> list[np.ndarray]:
    """Return all pairs of special numbers, and random ones."""
    pool: dict[int, np.ndarray] = {
        FLOAT: SOME_FLOATS,
        INT: SOME_INTS,
        2: np.array([False, True]),
    }
    grids = np.meshgrid(*(pool[kind] for kind in kinds), indexing="ij")
    random: dict[int, Any] = {
        FLOAT: lambda: rng.normal(size=200) * 10.0 ** rng.integers(-3, 2, 200),
        INT: lambda: rng.integers(-50, 50, 200).astype(np.int32),
        2: lambda: rng.random(200) < 0.5,
    }
    return [np.concatenate([g.ravel(), random[k]()]) for g, k in zip(grids, kinds, strict=True)]


def kinds_of(name: str) -> list[list[int]]:
    """Return the types of operands that an operation takes."""
    floats = operands_of(name) * [FLOAT]
    ints, bools = [INT for _ in floats], [2 for _ in floats]
    if name == "WHERE":
        return [[2, FLOAT, FLOAT], [2, INT, INT], [2, 2, 2]]
    if name in ("AND", "OR", "XOR", "NOT"):
        return [ints, bools]
    if name in ("SHL", "SHR"):
        return [ints]
    if name in ("EQ", "NE", "TO_FLOAT", "TO_INT", "TO_BOOL"):
        return [floats, ints, bools]
    if name in "NEG ABS SIGN RELU SQUARE ADD SUB MUL POW MIN MAX FLOORDIV MOD LT LE GT GE".split():
        return [floats, ints]
    return [floats]


OPERATION_KINDS = [(name, kinds) for name in MEANINGS for kinds in kinds_of(name)]


@pytest.mark.parametrize(("name", "kinds"), OPERATION_KINDS, ids=lambda x: str(x).replace(" ", ""))
@pytest.mark.parametrize("compute", [np.float32, np.float64])
def test_operations(library, name: str, kinds: list[int], compute: Any) -> None:
    """With one key the log-sum-exp is the score."""
    p = value_program(name, kinds)
    inputs = operation_inputs(name, kinds, np.random.default_rng(0))
    with np.errstate(all="ignore"):
        p.captures = [x.astype(compute) if x.dtype.kind == "f" else x for x in inputs]
        if compute == np.float32:  # denormal numbers count as 0, a quotient's too
            p.captures = [
                np.where(np.abs(x) < 1e-37, 0, x) if x.dtype.kind == "f" else x for x in p.captures
            ]
            if name == "FLOORDIV" and kinds == [FLOAT, FLOAT]:
                quotient = np.abs(p.captures[0] / p.captures[1])
                p.captures = [x[(quotient == 0) | ~(quotient < 1e-37)] for x in p.captures]
    count = p.captures[0].size
    query = np.zeros((2, count, 1, 1), compute)
    key = np.zeros((2, 1, 1, 1), compute)
    _, lse = core.Call(library, query, key, key, program=p).forward()
    # Functions of float in float64, rounded: those of NumPy in float32 err too.
    precise = name in "EXP EXPM1 LOG LOG1P LOG2 TANH SIGMOID SOFTPLUS SIN COS ERF RSQRT POW".split()
    captures = [x.astype(np.float64) if precise and x.dtype.kind == "f" else x for x in p.captures]
    shape = (2, 1, count, 1)
    wanted = evaluate(p.forward, captures, shape, np.float64 if precise else compute)
    with np.errstate(all="ignore"):
        result = wanted[len(kinds) * 2].astype(compute)  # after the loads
    wanted = np.broadcast_to(wanted[p.score], shape)
    if result.dtype.kind == "f" and OPERATIONS[p.forward[len(kinds) * 2].opcode] in FIXED_TYPES:
        result = wanted
    with np.errstate(all="ignore"):
        right = wanted.astype(compute)
    if p.forward[len(kinds) * 2].type == FLOAT:
        right = np.where(
            np.isnan(right), 777, np.where(np.isinf(right), np.sign(right) * 555, right)
        )
    error = {np.float32: 3e-7, np.float64: 1e-15}[compute]
    visible = right > -1e30
    np.testing.assert_allclose(
        lse.reshape(shape)[visible],
        right[visible],
        rtol=error if precise else 1.2e-7 if compute == np.float32 else 4e-16,
        atol=error,
        err_msg=f"{name} {kinds}",
    )


@pytest.mark.parametrize("seed", range(20))
def test_random_programs(library, seed: int) -> None:
    fuzz_programs.check(library, seed)


@pytest.mark.parametrize("seed", range(15))
def test_malformed_programs_are_refused_or_run(library, seed: int) -> None:
    fuzz_programs.check_malformed(library, seed)


def table_program(shape: tuple[int, ...]) -> Program:
    """Draw a learned table by distance, a bias (T, S) of all heads, one (N, T, S), gates of keys and a temperature."""
    batch, heads, queries, keys = shape
    rng = np.random.default_rng(0)
    p = Program()
    sizes = [(queries + keys,), (queries, keys), (heads, queries, keys), (batch, heads, keys), ()]
    p.captures = [rng.normal(size=size) for size in sizes]

    def indices(write: Writer) -> list[int]:
        query, key = write.leaf("QUERY"), write.leaf("KEY")
        head, batch_index = write.leaf("HEAD"), write.leaf("BATCH")

        def flat(x: int, size: int, y: int) -> int:
            return write("ADD", write("MUL", x, write.constant(size)), y)

        distance = write("ADD", write("SUB", key, query), write.constant(queries))
        gate = flat(flat(batch_index, heads, head), keys, key)
        return [
            distance,
            flat(query, keys, key),
            flat(flat(head, queries, query), keys, key),
            gate,
            write.constant(0),
        ]

    write = Writer(p.forward)
    loads = [write.load(i, FLOAT, at) for i, at in enumerate(indices(write))]
    p.score = write("MUL", write.leaf("SCORE"), write("EXP", write("TANH", loads[4])))
    for x in loads[:4]:
        p.score = write("ADD", p.score, x)
    back = Writer(p.derivative)
    at = indices(back)
    upstream, squashed = back.leaf("UPSTREAM"), back("TANH", back.load(4, FLOAT, at[4]))
    scaled = back("MUL", upstream, back("EXP", squashed))
    slope = back("SUB", back.constant(1.0), back("SQUARE", squashed))
    temperature = back("MUL", back("MUL", scaled, back.leaf("SCORE")), slope)
    p.score_gradient = scaled
    p.scatters = [*((i, at[i], upstream) for i in range(4)), (4, at[4], temperature)]
    return p


# Few heads, each of which is split into parts; several; and many, where (T, S) gets a pass of its own.
TABLE_SHAPES = [(1, 2, 300, 300), (2, 16, 130, 140), *slow([((5, 8, 512, 512),)])]


@pytest.mark.parametrize("shape", TABLE_SHAPES)
def test_gradients_of_captured_arrays(library, shape: tuple[int, ...]) -> None:
    """They are right, and the same bits for any number of threads."""
    *arrays, d_out = tensors(shape, shape[1], 0, np.float32)
    call = core.Call(library, *arrays, program=table_program(shape))
    output, lse = call.forward()
    results = []
    for threads in (1, 2, 5):
        gradients = call.backward(output, d_out, threads=threads)
        results.append([*gradients, *call.capture_gradients])
    for other in results[1:]:
        for x, y in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(x, y)
    if shape[0] == 5:
        return  # too many scores for the reference
    wanted = Expected(call.program, arrays)
    gradients, captured = wanted.backward(d_out, np.zeros_like(lse))
    for actual, right in zip(results[0], [*gradients, *captured], strict=True):
        assert_close(actual, right, "a gradient", 10)


def test_tasks_add_to_numbers_of_their_own(library) -> None:
    """The lanes beyond the last query of a tile are those of another task, which would lose what it adds meanwhile."""
    shape = (2, 16, 130, 140)
    *arrays, d_out = tensors(shape, shape[1], 0, np.float32)
    call = core.Call(library, *arrays, program=table_program(shape))
    output, _ = call.forward()
    call.backward(output, d_out, threads=1)
    alone = call.capture_gradients
    for _ in range(10):
        call.backward(output, d_out, threads=2)
        for x, y in zip(alone, call.capture_gradients, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("seed", range(3))
def test_programs_of_two_bytes(library, dtype: Any, seed: int) -> None:
    """Scores are float32 between the products, whatever multiplies."""
    shape = (2, 4, 70, 150)
    rng = np.random.default_rng(seed)
    *arrays, d_out = tensors(shape, 2, seed, dtype)
    call = core.Call(library, *arrays, program=Draw(rng, shape).draw(2))
    output, lse = call.forward()
    wide = [x.astype(np.float32) for x in arrays]
    wanted = Expected(call.program, wide)
    name = np.dtype(dtype).name
    assert_values(output, wanted.forward.out, name)
    assert_statistics(lse, wanted.forward.lse, name)
    gradients = call.backward(output, d_out)
    right, captured = wanted.backward(d_out.astype(np.float64), np.zeros(lse.shape))
    for actual, expected in zip(
        [*gradients, *call.capture_gradients], [*right, *captured], strict=True
    ):
        if expected is not None:
            error = np.abs(np.asarray(actual, np.float64) - expected).max()
            assert error <= 3e-2 * max(1, np.abs(expected).max())


def windowed(left: int) -> Program:
    """Return a causal window, as a function."""
    p = Program()
    write = Writer(p.forward)
    query, key = write.leaf("QUERY"), write.leaf("KEY")
    near = write("LE", write("SUB", query, key), write.constant(left))
    p.keep = write("AND", write("GE", query, key), near)
    return p


@pytest.mark.parametrize("length", [1, 3, 64, 300])
def test_a_window_as_a_function_is_the_rule(library, length: int) -> None:
    *arrays, d_out = tensors((2, 2, length, 300), 1, 0, np.float32)
    results = []
    for options in (
        {"program": windowed(40)},
        {"rules": [{"rule": WINDOW, "left": 40, "right": 0}]},
    ):
        call = core.Call(library, *arrays, **options)
        output, lse = call.forward()
        results.append([output, lse, *call.backward(output, d_out)])
    for x, y in zip(*results, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=2e-6)


def by_documents(p: Program, write: Writer, positions: int) -> int:
    """Return whether query and key have the same number in captured array 0, (B, positions)."""

    def document(name: str) -> int:
        row = write("MUL", write.leaf("BATCH"), write.constant(positions))
        return write.load(0, INT, write("ADD", row, write.leaf(name)))

    return write("EQ", document("QUERY"), document("KEY"))


def by_length(p: Program, write: Writer, positions: int) -> int:
    return write("LT", write.leaf("KEY"), write.constant(100))


def by_float(p: Program, write: Writer, positions: int) -> int:
    half = write("MUL", write("TO_FLOAT", write.leaf("KEY")), write.constant(0.5))
    return write("LT", write("FLOOR", half), write.constant(50.0))


def by_score(p: Program, write: Writer, positions: int) -> int:
    low = write.constant(float("-inf"))
    p.score = write("WHERE", by_length(p, write, positions), write.leaf("SCORE"), low)
    return -1


@pytest.mark.parametrize("keep", [by_documents, by_length, by_float, by_score])
@pytest.mark.parametrize("queries", [2, 90])
def test_blocks_that_the_program_hides_are_not_read(library, keep: Any, queries: int) -> None:
    """Their keys and values lie in pages that nobody may read."""
    positions, width = 4096, 16
    documents = np.where(np.arange(positions) < 100, 0, 1).astype(np.int32)[None]
    p = Program(captures=[documents])
    p.keep = keep(p, Writer(p.forward), positions)
    rng = np.random.default_rng(0)
    query = rng.normal(size=(1, queries, 1, width)).astype(np.float32)
    key = core.pages(positions * width * 4).view(np.float32).reshape(1, positions, 1, width)
    key[:, :128] = rng.normal(size=(1, 128, 1, width))
    core.protect(key.ctypes.data + 128 * width * 4, (positions - 128) * width * 4)
    output, _ = core.Call(library, query, key, key, program=p).forward()
    short = np.ascontiguousarray(key[:, :128])
    wanted, _ = core.Call(
        library, query, short, short, rules=[{"rule": LENGTHS, "first": [100]}]
    ).forward()
    np.testing.assert_allclose(output, wanted, rtol=0, atol=2e-6)


def test_what_is_not_a_number(library) -> None:
    """NaN takes its query along, -inf hides a key, and rows without keys are 0, forward and backward."""
    shape = (1, 1, 70, 140)
    *arrays, d_out = tensors(shape, 1, 0, np.float32)
    p = Program()
    write = Writer(p.forward)
    query, key = write.leaf("QUERY"), write.leaf("KEY")
    of_query = write("EQ", query, write.constant(3))
    hidden = write(
        "OR", write("LT", key, write.constant(20)), write("EQ", query, write.constant(5))
    )
    low = write("WHERE", hidden, write.constant(float("-inf")), write.leaf("SCORE"))
    p.score = write("WHERE", of_query, write.constant(float("nan")), low)
    back = Writer(p.derivative)
    seen = back("GE", back.leaf("KEY"), back.constant(20))
    # Not a number where the key is hidden, as the derivative of a logarithm may be.
    bad = back("WHERE", seen, back.constant(1.0), back.constant(float("nan")))
    p.score_gradient = back("MUL", back.leaf("UPSTREAM"), bad)
    call = core.Call(library, *arrays, program=p)
    output, lse = call.forward()
    assert np.isnan(output[0, 3]).all()
    assert (output[0, 5] == 0).all()
    assert lse[0, 0, 5] == -np.inf
    others = [x for x in range(70) if x != 3]
    rules = [{"rule": DENSE, "dense": (np.arange(140) >= 20)[None, None, None]}]
    wanted, _ = core.Call(library, *arrays, rules=rules).forward()
    np.testing.assert_allclose(output[0, others[6:]], wanted[0, others[6:]], rtol=0, atol=2e-6)
    p.score = low
    call = core.Call(library, *arrays, program=p)
    output, _ = call.forward()
    for gradient in call.backward(output, d_out):
        assert np.isfinite(gradient).all()


def test_a_row_that_sees_nothing_may_have_any_score(library) -> None:
    """Its scores are computed of 0 in the backward pass, where the reciprocal is infinite."""
    shape = (1, 1, 70, 140)
    *arrays, d_out = tensors(shape, 1, 0, np.float32)
    p = Program()
    write = Writer(p.forward)
    hidden = write("EQ", write.leaf("QUERY"), write.constant(5))
    score = write("ADD", write.leaf("SCORE"), write.constant(9.0))
    low = write("MUL", write.constant(-1e32), write("RECIPROCAL", score))
    p.score = write("WHERE", hidden, low, write("RECIPROCAL", score))
    back = Writer(p.derivative)
    p.score_gradient = back.leaf("UPSTREAM")
    call = core.Call(library, *arrays, program=p)
    output, _ = call.forward()
    assert (output[0, 5] == 0).all()
    for gradient in call.backward(output, d_out):
        assert np.isfinite(gradient).all()


def test_empty_calls_have_gradients_of_zero(library) -> None:
    for shape in ((0, 2, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)):
        *arrays, d_out = tensors(shape, 1, 0, np.float32)
        call = core.Call(library, *arrays, program=small_program())
        output, _ = call.forward()
        call.backward(output, d_out)
        assert (call.capture_gradients[0] == 0).all()


def refused(change: Any) -> str:
    """Return the message for a program with a change."""
    p = small_program()
    change(p)
    x = np.ones((1, 3, 1, 2), np.float32)
    with pytest.raises(ValueError) as caught:
        core.Call(core.load(LIBRARY), x, x, x, program=p).forward()
    return str(caught.value)


def test_messages_name_the_instruction_and_what_is_wrong() -> None:
    def opcode(p: Program) -> None:
        p.forward[2].opcode = 999

    def later(p: Program) -> None:
        p.forward[2].a = 2

    def types(p: Program) -> None:
        p.forward[2].a = Writer(p.forward).constant(1.0)
        p.forward[0], p.forward[-1] = p.forward[-1], p.forward[0]
        p.forward[2].a = 0

    def score(p: Program) -> None:
        p.keep = p.score

    assert (
        refused(opcode) == "instruction 2 of the forward pass of a program has an unknown operation"
    )
    assert (
        refused(later)
        == "instruction 2 of the forward pass of a program must have earlier values as operands"
    )
    assert "must have operands of one type" in refused(types)
    assert refused(score) == "`keep` of a program must be a bool. Received: a float"
