"""Random calls of the core through its C interface, legal and illegal, as a separate program.

    python -m tests.native.fuzz LIBRARY MODES INSTRUCTION_SETS FIRST_SEED COUNT

Each mode runs COUNT seeds on each instruction set; both lists are joined by commas. A mode is decode, usual, or legal,
page-end, illegal or large, or one of these with `additive-` before it; or rows-legal or rows-page-end; or programs,
programs-page-end or programs-malformed.

It prints each seed before its call, so that whoever started it knows the last one if the process dies, and ends with
an error at the first seed whose call did wrong. `test_fuzz.py` and `test_sanitizers.py` run it; tests in this folder
call some modes themselves.
"""

from __future__ import annotations

import functools
import mmap
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.native import (
    core,
    decoder,
    fuzz_additive,
    fuzz_large,
    fuzz_mistakes,
    fuzz_programs,
    rows,
)
from tests.native.fuzz_problems import draw

Draw = Callable[..., Any]
GUARD = 0xA5
THREADS = (-(2**31), -1, 0, 1, 2, 3, 9, 1000, 2**31 - 1)


class Guards:
    """Makes arrays for results that lie among guard bytes: around them and, where they are strided, between rows."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.made: list[
            tuple[np.ndarray, np.ndarray]
        ] = []  # all bytes, and which of them are the result's

    def __call__(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        # Numbers of 3 axes (log-sum-exp) have no strides; rows of 4 axes may have any, but for the last axis.
        gap = self.rng.integers(0, 4, len(shape)) if len(shape) == 4 else np.zeros(3, int)
        order = (
            [0, 2, 1, 3] if len(shape) == 4 and self.rng.random() < 0.5 else [*range(len(shape))]
        )
        size = np.dtype(dtype).itemsize
        full = [shape[axis] + int(gap[axis]) for axis in order]
        count = int(np.prod(full)) * size
        block = np.full(count + 128, GUARD, np.uint8)
        inside = np.zeros(count + 128, bool)
        part = tuple(slice(0, shape[axis]) for axis in order)
        back = np.argsort(order)
        flags = inside[64 : 64 + count].reshape(*full[:-1], full[-1] * size)
        flags[(*part[:-1], slice(0, shape[-1] * size))] = True
        self.made.append((block, inside))
        return block[64 : 64 + count].view(dtype).reshape(full)[part].transpose(back)

    def check(self) -> None:
        """Check that nothing but the results was written to."""
        for block, inside in self.made:
            if np.any(block[~inside] != GUARD):
                raise AssertionError("bytes outside of a result were written to")

    def untouched(self) -> bool:
        return all(np.all(block == GUARD) for block, _ in self.made)


class PageEnds:
    """Makes arrays that end at a protected page: a read beyond their end crashes."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def __call__(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        heads_first = len(shape) == 4 and self.rng.random() < 0.5
        order = [0, 2, 1, 3] if heads_first else [*range(len(shape))]
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        usable = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        whole = core.pages(usable + mmap.PAGESIZE)
        core.protect(whole.ctypes.data + usable, mmap.PAGESIZE)
        made = whole[usable - size : usable].view(dtype).reshape([shape[axis] for axis in order])
        return made.transpose(np.argsort(order))

    def copy(self, x: np.ndarray) -> np.ndarray:
        made = self(x.shape, x.dtype)
        made[...] = x
        return made

    def place(self, problem: Any) -> None:
        """Move all that a problem's call reads there."""
        problem.inputs = [self.copy(x) for x in problem.inputs]
        problem.d_out, problem.d_lse = self.copy(problem.d_out), self.copy(problem.d_lse)
        compute = problem.d_lse.dtype
        for name in {"bias", "slopes"} & problem.options.keys():
            problem.options[name] = self.copy(np.asarray(problem.options[name], compute))
        for rule in problem.options["rules"]:
            if "dense" in rule:
                rule["dense"] = self.copy(rule["dense"].astype(np.uint8))


def check_passes(call: core.Call, problem: Any, threads: Sequence[int] = (2, 2)) -> None:
    """Check that forward and backward equal the reference; the backward pass gets the results of the forward pass."""
    output, lse = call.forward(threads[0])
    problem.check_forward(output, lse)
    received = output, problem.d_out, problem.d_lse, threads[1]
    problem.check_backward(call.backward(*received))
    if "bias" in problem.options and not isinstance(call, core.AdditiveCall):
        problem.check_bias(call.bias_gradient(problem.options["bias"].shape, *received))


def page_end(library: Any, seed: int, draw: Draw = draw, kind: type[core.Call] = core.Call) -> None:
    """Check that nothing beyond the last number of any array is read or written to."""
    rng = np.random.default_rng(seed)
    problem, ends = draw(rng), PageEnds(rng)
    problem.wild = True  # `legal` compares the results of this seed
    ends.place(problem)
    check_passes(kind(library, *problem.inputs, make=ends, **problem.options), problem)


def legal(library: Any, seed: int, draw: Draw = draw, kind: type[core.Call] = core.Call) -> None:
    """Check that results equal the reference, nothing else is written to, the inputs stay as they were."""
    rng = np.random.default_rng(seed)
    problem = draw(rng)
    guards = Guards(rng)
    call = kind(library, *problem.inputs, make=guards, **problem.options)
    before = [x.tobytes() for x in (*problem.inputs, *call.kept)]
    check_passes(call, problem, [int(n) for n in rng.choice(THREADS, 2)])
    guards.check()
    if [x.tobytes() for x in (*problem.inputs, *call.kept)] != before:
        raise AssertionError("an input was written to")


usual = functools.partial(legal, draw=functools.partial(draw, usual=True))


def illegal(
    library: Any,
    seed: int,
    draw: Draw = draw,
    kind: type[core.Call] = core.Call,
    mistakes: Sequence[fuzz_mistakes.Mistake] = fuzz_mistakes.OF_DOT_PRODUCT,
) -> None:
    """Check that a call with one mistake is refused in the words for it, and writes nothing."""
    rng = np.random.default_rng(seed)
    problem, guards = draw(rng, empty=False), Guards(rng)
    call = kind(library, *problem.inputs, make=guards, **problem.options)
    call.softmax = guards((call.softmax_size,), problem.d_lse.dtype)
    received = (guards(problem.d_out.shape, problem.d_out.dtype), problem.d_out, problem.d_lse)
    words = mistakes[seed % len(mistakes)](call, rng)
    refuses: list[Callable[[int], Any]] = [call.forward, lambda n: call.backward(*received, n)]
    if kind is core.Call:
        refuses.append(lambda n: call.bias_gradient((1, 1, 1, 1), *received, n))
    for run in refuses:
        try:
            run(int(rng.choice(THREADS)))
        except ValueError as error:
            said = str(error)
        else:
            raise AssertionError(f"not refused: {words}")
        if not re.search(words, said) or said != library.heed_check(call.attention).decode():
            raise AssertionError(f"refused for another reason than {words}: {said}")
    if not guards.untouched():
        raise AssertionError(f"refused, but something was written: {words}")


def large(
    library: Any, seed: int, draw: Draw = fuzz_large.draw, kind: type[core.Call] = core.Call
) -> None:
    """Check that results of large scores equal the reference, or their weights sum to 1."""
    rng = np.random.default_rng(seed)
    problem = draw(rng)
    call = kind(library, *problem.inputs, **problem.options)
    check_passes(call, problem, [int(n) for n in rng.integers(1, 4, 2)])


def rows_legal(library: Any, seed: int) -> None:
    """Do as `legal`, for the fused row-wise ops."""
    rng = np.random.default_rng(seed)
    guards = Guards(rng)
    rows.check(library, rng, guards)
    guards.check()


def rows_page_end(library: Any, seed: int) -> None:
    """Do as `page_end`."""
    rng = np.random.default_rng(seed)
    rows.check(library, rng, PageEnds(rng))


def decode(library: Any, seed: int) -> None:
    """Check that any number of threads gives the tokens of the definition; no array is touched beyond its end."""
    rng = np.random.default_rng(seed)
    search = seed % 3
    sizes = {
        name: int(rng.choice(values))
        for name, values in {
            "kv_heads": (1, 2, 3),
            "queries_per_kv": (1, 2, 3),
            "head_dim": (2, 4, 6, 18),
            "value_dim": (1, 3, 8, 17),
            "width": (1, 4, 15, 16, 33, 65),
            "encoded_width": (0, 5, 16, 33),
            "vocabulary": (4, 9, 40, 130),
            "hidden": (1, 16, 31, 66),
            "layers": (0, 1, 2),
        }.items()
    }
    flags = ("norm_first", "final_norm", "biased", "tied", "table", "rotary", "bias", "masked")
    flags += ("root_mean_square", "gated", "qk_norm", "sinks", "gate", "prompted", "embedding_norm")
    options = {**sizes, **{name: bool(rng.random() < 0.5) for name in flags}}
    options["encoder"] = bool(sizes["encoded_width"] and rng.random() < 0.5)
    options["window"] = int(rng.choice((0, 0, 1, 2, 4)))
    options["soft_cap"] = float(rng.choice((0, 0, 0.5, 3)))
    options["activation"] = str(rng.choice([*decoder.ACTIVATIONS]))
    options["pack"] = str(rng.choice(decoder.PACKS))
    stack = decoder.Stack(rng, place=PageEnds(rng).copy, **options)
    if search == 1:
        options["sampling"] = {"top_k": int(rng.integers(0, 5)), "temperature": 1.5}
    if search == 2:
        options["beams"] = int(rng.integers(1, 5))
    shape = [int(n) for n in rng.integers((1, 1, 0), (5, 6, 7))]
    call = decoder.Call(stack, *shape, **options)
    stack.in_place = -1
    tokens = call.run(library, stack, 1)
    stack.in_place = 1
    again = call.run(library, stack, int(rng.choice(THREADS)))
    if not np.array_equal(tokens, again):
        raise AssertionError("the number of threads, or the place of weights, changed tokens")
    check = (decoder.assert_best, decoder.assert_drawn, decoder.beams_decided)[search]
    if search == 1 and stack.pack in decoder.INTEGERS:
        return  # the order of nearly equal scores is that of rounding
    check(stack, call, tokens)


def programs(library: Any, seed: int) -> None:
    """Do as `legal`, for programs of scores."""
    guards = Guards(np.random.default_rng(seed))
    fuzz_programs.check(library, seed, make=guards)
    guards.check()


def programs_page_end(library: Any, seed: int) -> None:
    """Do as `page_end`: captured arrays, too."""
    ends = PageEnds(np.random.default_rng(seed))
    fuzz_programs.check(library, seed, ends, ends.copy)


ADDITIVE: dict[str, Any] = {"draw": fuzz_additive.draw, "kind": core.AdditiveCall}
MODES = {
    "decode": decode,
    "legal": legal,
    "usual": usual,
    "page-end": page_end,
    "illegal": illegal,
    "large": large,
    "additive-legal": functools.partial(legal, **ADDITIVE),
    "additive-page-end": functools.partial(page_end, **ADDITIVE),
    "additive-illegal": functools.partial(illegal, **ADDITIVE, mistakes=fuzz_mistakes.OF_ADDITIVE),
    "additive-large": functools.partial(
        large, draw=fuzz_large.draw_additive, kind=core.AdditiveCall
    ),
    "rows-legal": rows_legal,
    "rows-page-end": rows_page_end,
    "programs": programs,
    "programs-page-end": programs_page_end,
    "programs-malformed": fuzz_programs.check_malformed,
}


def main(path: str, modes: str, instruction_sets: str, first: str, count: str) -> None:
    library = decoder.declare(core.load(path))
    tried = False
    for name in instruction_sets.split(","):
        if not library.heed_use_instruction_set(name.encode()):
            continue
        tried = True
        for mode in modes.split(","):
            for seed in range(int(first), int(first) + int(count)):
                print(f"{mode} seed {seed} on {name}", flush=True)
                MODES[mode](library, seed)
    print("all well" if tried else f"no {instruction_sets} here")


if __name__ == "__main__":
    main(*sys.argv[1:])
