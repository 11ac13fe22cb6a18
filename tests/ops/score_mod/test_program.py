"""Programs: values, derivatives, bounds and their form as bytes and text."""

from __future__ import annotations

import contextlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from heed.ops.score_mod._builder import Builder, finish
from heed.ops.score_mod.bounds import Place, may_keep, ranges
from heed.ops.score_mod.derivative import derive
from heed.ops.score_mod.evaluation import NUMPY, evaluate
from heed.ops.score_mod.keras_functions import KerasFunctions
from heed.ops.score_mod.operations import NAMES, OPERATIONS, Type
from heed.ops.score_mod.program import NONE, Program, from_bytes, to_bytes
from tests import tolerances
from tests.backend import BACKEND, enable_64_bits
from tests.ops.score_mod import programs

SEEDS = st.integers(0, 1000)


@given(programs.scores(), SEEDS)
@settings(max_examples=60, deadline=None)
def test_the_derivative_is_that_of_finite_differences(program: Program, seed: int) -> None:
    """Where no kink lies within the step."""
    leaves, captures = programs.leaves(seed), programs.captures(seed)
    upstream = np.random.default_rng(seed + 2).normal(size=programs.SIZES)
    incoming = {**leaves, "UPSTREAM": upstream}
    score, table = programs.reference_gradients(derive(program), incoming, captures)
    value = lambda leaves, captures: np.sum(  # noqa: E731
        upstream * programs.reference(program, leaves, captures)
    )
    rng = np.random.default_rng(seed + 3)
    toward = rng.normal(size=programs.SIZES), rng.normal(size=programs.FLOATS)

    def along(step: float) -> float:
        moved = {**leaves, "SCORE": leaves["SCORE"] + step * toward[0]}
        return value(moved, [captures[0] + step * toward[1], captures[1]])

    slopes = [(along(h) - along(-h)) / (2 * h) for h in (1e-5, 5e-6, -2.5e-6)]
    expected = np.sum(toward[0] * score) + np.sum(toward[1] * table)
    spread = max(slopes) - min(slopes)
    # A kink or a jump (a comparison of floats) near by shows as slopes that differ.
    if spread < 1e-3 * (1 + abs(expected)):
        np.testing.assert_allclose(slopes[1], expected, rtol=1e-4, atol=1e-4 + spread)


@given(programs.scores(), SEEDS)
@settings(max_examples=12, deadline=None)
def test_the_operations_of_keras_give_the_reference(program: Program, seed: int) -> None:
    leaves, captures = programs.leaves(seed), programs.captures(seed)
    with enable_64_bits(True) if BACKEND == "jax" else contextlib.nullcontext():
        functions = KerasFunctions("float64")
        tensors = {
            name: ops.convert_to_tensor(x, "float64" if name == "SCORE" else "int32")
            for name, x in leaves.items()
        }
        arrays = [ops.convert_to_tensor(captures[0], "float64"), ops.convert_to_tensor(captures[1])]
        found = evaluate(program.instructions, functions, tensors, arrays)[program.score]
    expected = programs.reference(program, leaves, captures)
    actual = np.broadcast_to(tolerances.to_numpy(found), programs.SIZES)
    np.testing.assert_allclose(
        actual, np.broadcast_to(expected, programs.SIZES), rtol=1e-9, atol=1e-9
    )


@given(programs.masks(), SEEDS)
@settings(max_examples=100, deadline=None)
def test_bounds_hold_every_value_of_a_block(program: Program, seed: int) -> None:
    leaves, captures = programs.leaves(seed), programs.captures(seed)
    with np.errstate(all="ignore"):
        values = evaluate(program.instructions, NUMPY, leaves, captures)
    shape = programs.SIZES
    for queries, keys in itertools.product([(0, 1), (2, 4)], [(0, 2), (3, 5)]):
        place = Place((0.0, 1.0), (0.0, 2.0), queries, keys)
        block = np.s_[:, :, queries[0] : queries[1] + 1, keys[0] : keys[1] + 1]
        for (lo, hi), value in zip(ranges(program, place), values, strict=True):
            inside = np.broadcast_to(value, shape)[block].astype(float)
            if not (lo == -np.inf and hi == np.inf):
                assert np.all((inside >= lo) & (inside <= hi))
        some, every = may_keep(program, place)
        kept = np.broadcast_to(values[program.keep], shape)[block]
        assert bool(some) or not kept.any()
        assert not bool(every) or kept.all()


def test_a_causal_window_is_judged_exactly() -> None:
    """By the corners of each block."""
    b = Builder(Place())
    distance = b.subtract(b.leaf("QUERY"), b.leaf("KEY"))
    inside = b.emit("LT", distance, b.constant(256, Type.INT))
    value = b.emit("AND", inside, b.emit("GE", distance, b.constant(0, Type.INT)))
    instructions, places = finish(b.instructions, [NONE, value])
    program = Program(instructions, (), *places)
    first = np.arange(0, 4096, 64.0)[:, None]
    keys = np.arange(0, 4096, 96.0)[None, :]
    some, every = may_keep(program, Place(query=(first, first + 63), key=(keys, keys + 95)))
    q, k = np.arange(4096)[:, None], np.arange(4128)[None, :]
    kept = ((q - k < 256) & (q >= k)).reshape(64, 64, 43, 96)
    assert np.array_equal(some, kept.any((1, 3)))
    assert np.array_equal(every, kept.all((1, 3)))


@given(programs.scores())
@settings(max_examples=30, deadline=None)
def test_bytes_and_text_hold_the_program(program: Program) -> None:
    assert from_bytes(to_bytes(program.instructions)) == program.instructions
    assert Program.from_text(program.to_text()) == program


def test_text_that_is_no_program_is_refused() -> None:
    with pytest.raises(ValueError, match="text as heed writes it"):
        Program.from_text('[["NOTHING", 0, 0, 0, 0, 0, 0]]')


def test_an_instruction_has_the_layout_of_the_header() -> None:
    data = to_bytes(Program.from_text('[[["SCORE", 0, 0, 0, 0, 0, 1.5]], [], 0, -1]').instructions)
    assert data == bytes([1, 0, 0, 0]) + bytes(12) + np.float64(1.5).tobytes()
    assert (NAMES.index("NEG"), NAMES.index("ADD"), NAMES.index("WHERE"), len(NAMES)) == (
        8,
        30,
        51,
        58,
    )


def test_numpy_has_every_operation() -> None:
    """Each with a value, in the type that it says."""
    x = {Type.FLOAT: np.array(0.5), Type.INT: np.array(3, np.int32), Type.BOOL: np.array(True)}
    for name, operation in OPERATIONS.items():
        for kind in Type:
            names = operation.compute.__code__.co_varnames[
                1 : operation.compute.__code__.co_argcount
            ]
            operands = [x[Type.BOOL] if one == "c" else x[kind] for one in names]
            if name in ("AND", "OR", "XOR", "NOT", "SHL", "SHR") and kind == Type.FLOAT:
                continue
            if kind == Type.BOOL and name not in ("AND", "OR", "XOR", "NOT", "EQ", "NE", "WHERE"):
                continue
            result = np.asarray(operation.compute(NUMPY, *operands))
            assert result.shape == (), name
