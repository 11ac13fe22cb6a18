"""Random programs of scores, well-formed and not, for `fuzz` and `test_program`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests import reference
from tests.native import core, fuzz_problems
from tests.native.core import WINDOW
from tests.native.score_programs import FLOAT, INT, Draw, Instruction, Program, Writer, evaluate

SHAPES = [(2, 4, 70, 150), (1, 2, 64, 128), (2, 2, 3, 200), (1, 3, 1, 130), (3, 1, 20, 5)]


def tensors(shape: tuple[int, ...], kv_heads: int, seed: int, dtype: Any) -> list[np.ndarray]:
    """Return query, key, value and the gradient of the output."""
    rng = np.random.default_rng(seed)
    batch, heads, queries, keys = shape
    sizes = [(batch, queries, heads, 16), (batch, keys, kv_heads, 16)]
    sizes += [(batch, keys, kv_heads, 12), (batch, queries, heads, 12)]
    return [rng.normal(size=size).astype(dtype) for size in sizes]


class Expected:
    """What a call with a program should give: by NumPy in float64, from the same instructions."""

    def __init__(self, program: Program, arrays: list[np.ndarray], **options: Any) -> None:
        query, key = (x.astype(np.float64) for x in arrays[:2])
        self.program, self.arrays, self.options = program, arrays, options
        batch, queries, self.heads, width = query.shape
        self.shape = (batch, self.heads, queries, key.shape[1])
        self.repeats = self.heads // key.shape[2]
        self.compute = np.float64 if arrays[0].dtype == np.float64 else np.float32
        self.scale, self.soft_cap = width**-0.5, options.pop("soft_cap", None)
        dots = np.einsum("bthc,bshc->bhts", query, key.repeat(self.repeats, 2)) * self.scale
        self.slope = np.ones_like(dots)
        if self.soft_cap:
            squashed = np.tanh(dots / self.soft_cap)
            dots, self.slope = self.soft_cap * squashed, 1 - squashed**2
        self.score = dots
        values = evaluate(program.forward, program.captures, self.shape, self.compute, dots)
        modified = (
            np.broadcast_to(values[program.score], self.shape) if program.score >= 0 else dots
        )
        mask = options.pop("mask", None)
        if program.keep >= 0:
            kept = np.broadcast_to(values[program.keep], self.shape)
            mask = kept if mask is None else kept & mask
        bias = np.where(modified <= -1e30, -np.inf, modified - dots) + options.pop("bias", 0.0)
        # The reference has no program: what it adds is a bias of scores without soft cap.
        self.call = {"mask": mask, "bias": bias + dots, "scale": 0.0, **options}
        self.forward = reference.dot_product_attention(*arrays[:3], **self.call)

    def backward(self, d_out: np.ndarray, d_lse: np.ndarray) -> tuple[list[Any], list[Any]]:
        """Return gradients of query, key and value, and of the captured floats."""
        seen = np.isfinite(self.forward.lse)
        made = reference.dot_product_attention_backward(
            *self.arrays[:3], d_out=d_out, d_lse=np.where(seen, d_lse, 0), **self.call
        )
        upstream, p = made.bias, self.program
        values = evaluate(p.derivative, p.captures, self.shape, self.compute, self.score, upstream)

        def full(x: Any) -> np.ndarray:
            return np.where(upstream == 0, 0, np.broadcast_to(x, self.shape))

        d_score = upstream
        if p.score >= 0:
            d_score = full(values[p.score_gradient]) if p.score_gradient >= 0 else 0 * upstream
        d_dots = d_score * self.slope * self.scale
        query, key = (x.astype(np.float64) for x in self.arrays[:2])
        d_query = np.einsum("bhts,bshc->bthc", d_dots, key.repeat(self.repeats, 2))
        d_key = np.einsum("bhts,bthc->bshc", d_dots, query)
        batch, keys, kv_heads, width = key.shape
        d_key = d_key.reshape(batch, keys, kv_heads, self.repeats, width).sum(3)
        captured = [np.zeros(x.size) if x.dtype.kind == "f" else None for x in p.captures]
        for capture, index, gradient in p.scatters:
            at = np.clip(
                np.broadcast_to(values[index], self.shape), 0, p.captures[capture].size - 1
            )
            np.add.at(captured[capture], at.ravel(), full(values[gradient]).ravel())
        shaped = [
            None if x is None else x.reshape(of.shape)
            for x, of in zip(captured, p.captures, strict=True)
        ]
        return [d_query, d_key, made.value], shaped


def assert_close(actual: np.ndarray, expected: np.ndarray, what: str, terms: int = 1) -> None:
    """Check that results are equal but for the roundings of the dtype, in sums of so many terms."""
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(actual), finite, err_msg=what)
    largest = max(1.0, float(np.max(np.abs(expected[finite]), initial=0.0)))
    bound = {"f4": 3e-5, "f8": 1e-11}[actual.dtype.str[1:]] * largest * terms**0.5
    np.testing.assert_allclose(actual[finite], expected[finite], rtol=0, atol=bound, err_msg=what)


def check(
    library: Any,
    seed: int,
    make: Callable[..., np.ndarray] = core.filled,
    copy: Callable[[np.ndarray], np.ndarray] = np.copy,
) -> None:
    """Check that forward and backward are right, with masks, biases and grouped heads, through tiles and rows.

    Args:
        make: makes the arrays that results are written to.
        copy: returns the array of a captured one that the core reads.
    """
    rng = np.random.default_rng(seed)
    shape = SHAPES[seed % len(SHAPES)]
    dtype = (np.float32, np.float64)[seed // len(SHAPES) % 2]
    kv_heads = int(rng.choice([n for n in range(1, shape[1] + 1) if shape[1] % n == 0]))
    *arrays, d_out = tensors(shape, kv_heads, seed, dtype)
    program = Draw(rng, shape).draw()
    compute = dtype
    program.captures = [
        copy(x.astype(compute)) if x.dtype.kind == "f" else copy(x) for x in program.captures
    ]
    options: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    if rng.random() < 0.3:
        options["soft_cap"] = expected["soft_cap"] = 2.0
    if rng.random() < 0.3:
        options["bias"] = expected["bias"] = rng.normal(size=(1, shape[1], shape[2], 1)).astype(
            dtype
        )
    if rng.random() < 0.4:
        options["rules"] = [{"rule": WINDOW, "left": 40, "right": 3}]
        i, j = np.arange(shape[2])[:, None], np.arange(shape[3])[None]
        expected["mask"] = ((j >= i - 40) & (j <= i + 3))[None, None]
    if rng.random() < 0.2:
        options |= {"dropout": 0.4, "seed": (seed, 7)}
        expected |= {"dropout": 0.4, "keep": fuzz_problems.kept(0.4, (seed, 7), shape)}
    call = core.Call(library, *arrays, program=program, make=make, **options)
    output, lse = call.forward()
    wanted = Expected(program, arrays, **expected)
    assert_close(output, wanted.forward.out, f"output, seed {seed}")
    assert_close(lse, wanted.forward.lse, f"lse, seed {seed}")
    d_lse = rng.normal(size=lse.shape).astype(lse.dtype)
    gradients = call.backward(output, d_out, d_lse)
    right, captured = wanted.backward(d_out, d_lse)
    for name, actual, expected_one in zip(("query", "key", "value"), gradients, right, strict=True):
        assert_close(actual, expected_one, f"gradient of {name}, seed {seed}", 10)
    for i, (actual, expected_one) in enumerate(zip(call.capture_gradients, captured, strict=True)):
        if expected_one is not None:
            assert_close(actual, expected_one, f"gradient of captured array {i}, seed {seed}", 100)


def small_program() -> Program:
    """Return one that has every part: a table by distance, a mask, their derivative."""
    p = Program(captures=[np.arange(9.0), np.arange(4, dtype=np.int32)])
    write = Writer(p.forward)
    distance = write("SUB", write.leaf("KEY"), write.leaf("QUERY"))
    p.score = write("ADD", write.leaf("SCORE"), write.load(0, FLOAT, distance))
    p.keep = write("LE", distance, write.load(1, INT, write.leaf("BATCH")))
    back = Writer(p.derivative)
    p.score_gradient = back.leaf("UPSTREAM")
    p.scatters = [(0, back("SUB", back.leaf("KEY"), back.leaf("QUERY")), p.score_gradient)]
    return p


def malformed(program: Any, rng: np.random.Generator) -> None:
    """Replace one field of a valid structure, or some, by numbers of any kind."""
    wild = [-(2**31), -2, -1, 0, 1, 2, 3, 5, 7, 16, 17, 255, 256, 257, 2**31 - 1]

    def some() -> int:
        return int(rng.choice(wild))

    which = rng.integers(0, 10)
    items = program.forward if rng.random() < 0.5 else program.derivative
    if which < 5 and 0 < items.count < 9:
        x = (Instruction * items.count).from_address(items.data)[int(rng.integers(0, items.count))]
        name = str(rng.choice(["opcode", "type", "capture", "a", "b", "c", "constant"]))
        setattr(x, name, float(some()) / 2 if name == "constant" else some())
    elif which == 5:
        name = str(
            rng.choice(["score", "keep", "score_gradient", "capture_count", "scatter_count"])
        )
        least = {"capture_count": 16, "scatter_count": 64}.get(name, -(2**31))
        value = some()
        if 0 < value <= least:  # the arrays have no more
            value = -value
        setattr(program, name, value)
    elif which == 6:
        setattr(program.scatters[0], str(rng.choice(["capture", "index", "gradient"])), some())
    elif which == 7:
        x = program.captures[int(rng.integers(0, 2))]
        if rng.random() < 0.5:
            x.type = some()
        else:
            x.size = int(rng.choice([-1, 0, -(2**62), 2**31, 2**62]))
    elif which == 8:
        items.count = int(rng.choice([-1, 0, 1, 2, 257, 2**31 - 1]))
    else:
        program.captures[int(rng.integers(0, 2))].data = None


def check_malformed(library: Any, seed: int) -> None:
    """Check that whatever a field holds gives an error message, or results; never a read out of bounds."""
    rng = np.random.default_rng(seed)
    *arrays, d_out = tensors((1, 2, 9, 11), 1, seed, np.float32)
    for _ in range(20):
        call = core.Call(library, *arrays, program=small_program())
        for _ in range(int(rng.integers(1, 4))):
            malformed(call.attention.program.contents, rng)
        try:
            output, _ = call.forward()
            call.backward(output, d_out)
        except ValueError as error:
            if "program" not in str(error) and "captured" not in str(error):
                raise AssertionError(f"refused for another reason: {error}") from None
