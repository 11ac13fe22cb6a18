"""Random calls of the core, in child processes: a crash is a failure with a seed.

HEED_FUZZ_SEED=n starts the long run (`-m slow`) at another seed; see `fuzz.py` for running one seed by itself.
"""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import reference
from tests.native import core, fuzz
from tests.native.core import DENSE, DILATED, INSTRUCTION_SETS, LIBRARY, WINDOW

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="installed without the native library")

COUNTS = dict.fromkeys(fuzz.MODES, 6000) | {
    "decode": 1000,
    "large": 20_000,
    "illegal": 4000,
    "additive-illegal": 4000,
}
FIRST_SEED = int(os.environ.get("HEED_FUZZ_SEED", "10000"))


EVERY_SET = ",".join(INSTRUCTION_SETS)


def start(*words: Any) -> subprocess.CompletedProcess[str]:
    """Run Python to its end, however that is."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def run(modes: str, instruction_sets: str, first: int, count: int) -> None:
    """Run the program; if it fails, say with which seed, and what it said last."""
    child = start("-m", "tests.native.fuzz", LIBRARY, modes, instruction_sets, first, count)
    last = child.stdout.splitlines()[-1:] or [""]
    if last[0].startswith("no "):
        pytest.skip(f"this machine has {last[0]}")
    if child.returncode != 0 or last != ["all well"]:
        pytest.fail(f"exit status {child.returncode} at: {last[0]}\n{child.stderr[-3000:]}")


def test_nothing_beyond_the_last_number_is_touched() -> None:
    run("page-end,additive-page-end,rows-page-end,programs-page-end", EVERY_SET, 100, 20)


def test_decoding_is_right() -> None:
    run("decode", EVERY_SET, 0, 40)


def test_large_scores_are_right() -> None:
    run("large,additive-large", EVERY_SET, 0, 80)


def test_illegal_calls_are_refused_in_words() -> None:
    """Before any instruction set is chosen."""
    run("illegal,additive-illegal", INSTRUCTION_SETS[-1], 0, 150)


@pytest.mark.slow
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize(("mode", "count"), COUNTS.items())
def test_many_more(mode: str, count: int, instruction_set: str) -> None:
    run(mode, instruction_set, FIRST_SEED, count)


def test_a_program_that_ends_early_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is started with a file that is no library."""
    monkeypatch.setattr(sys.modules[__name__], "LIBRARY", Path(os.devnull))
    with pytest.raises(pytest.fail.Exception, match="exit status 1"):
        run("legal", INSTRUCTION_SETS[-1], 0, 1)


@pytest.mark.parametrize("width", [511, 512, 513, 4097, 65536])
def test_wide_heads(width: int) -> None:
    library = core.load(str(LIBRARY))
    rng = np.random.default_rng(width)
    query, key = (rng.normal(size=(1, 3, 1, width)).astype(np.float32) for _ in range(2))
    guards = fuzz.Guards(rng)
    call = core.Call(library, query, key, key, make=guards)
    output, _ = call.forward()
    wanted = reference.dot_product_attention(query, key, key)
    np.testing.assert_allclose(output, wanted.out, atol=1e-4)
    gradients = call.backward(output, query)
    backward = reference.dot_product_attention_backward(query, key, key, query)
    for name, actual in zip(("query", "key", "value"), gradients, strict=True):
        np.testing.assert_allclose(actual, getattr(backward, name), atol=1e-3 * width**0.5)
    guards.check()


def test_where_memory_does_not_suffice_the_call_is_refused() -> None:
    """All sizes are legal: one row serves for all, as strides of 0 allow."""
    library = core.load(str(LIBRARY))
    row = np.zeros((1, 1, 1, 65536), np.float32)
    call = core.Call(library, row, row, row)
    call.attention.key_length = 2**31
    call.attention.key = call.attention.value = core.Tensor(row.ctypes.data, 0, 0, 0)
    call.softmax = np.ones((2, 1, 1), np.float32)
    with pytest.raises(ValueError, match="out of memory"):
        call.backward(row, row)


BEYOND = """
import sys
import numpy as np
from tests.native import core, fuzz

make = fuzz.PageEnds(np.random.default_rng(0))
x = make((1, 40, 1, 16), np.float32)
call = core.Call(core.load(sys.argv[1]), x, x, x)
call.attention.key_length += int(sys.argv[2])
call.forward()
"""


@pytest.mark.parametrize(("more", "status"), [(0, 0), (1, -signal.SIGSEGV)])
def test_who_reads_beyond_a_page_dies(more: int, status: int) -> None:
    child = start("-c", BEYOND, LIBRARY, more)
    assert child.returncode == status, child.stderr


def test_decoding_reads_the_keys_of_its_window_alone(library: Any) -> None:
    """Of 4,096 keys memory holds the 128 that the query sees; who reads another one dies."""
    begin, end, page = 1088, 1216, mmap.PAGESIZE  # in the middle of a block; rows of 64 bytes
    rng = np.random.default_rng(0)
    query = rng.normal(size=(1, 1, 1, 16)).astype(np.float32)
    seen = []
    for _ in range(2):
        pages = core.pages((end - begin) * 64 + 2 * page)
        for at in (0, pages.size - page):
            core.protect(pages.ctypes.data + at, page)
        seen.append(pages[page:-page].view(np.float32).reshape(1, end - begin, 1, 16))
        seen[-1][...] = rng.normal(size=seen[-1].shape)
    wanted, _ = core.Call(library, query, *seen).forward()
    window = {"rule": WINDOW, "left": 127, "right": 0, "align": end - 1}
    call = core.Call(library, query, *seen, rules=[window])
    call.attention.key_length = 4096
    for rows in (call.attention.key, call.attention.value):
        rows.data -= begin * 64
    np.testing.assert_allclose(call.forward()[0], wanted, atol=1e-6)


@pytest.mark.parametrize("rule", ["dilated", "dense"])
def test_decoding_skips_blocks_that_a_mask_rules_out(library: Any, rule: str) -> None:
    """Memory lacks every other block of the keys."""
    keys, block, dilation, first = 4096, 128, 256, 5
    rng = np.random.default_rng(0)
    query = rng.normal(size=(1, 1, 1, 16)).astype(np.float32)
    memory = [core.pages(keys * 64).view(np.float32).reshape(1, keys, 1, 16) for _ in range(2)]
    for x in memory:
        x[...] = rng.normal(size=x.shape)
    alone = (x[:, first::dilation].copy() for x in memory)
    wanted, _ = core.Call(library, query, *alone).forward()
    for x in memory:
        for j in range(block, keys, dilation):
            core.protect(x.ctypes.data + j * 64, block * 64)
    rules = {
        "dilated": {"rule": DILATED, "left": dilation, "align": first - 7 * dilation},
        "dense": {"rule": DENSE, "dense": (np.arange(keys) % dilation == first)[None, None, None]},
    }
    output, _ = core.Call(library, query, *memory, rules=[rules[rule]]).forward()
    np.testing.assert_allclose(output, wanted, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_guards_see_what_is_written_outside(seed: int) -> None:
    guards = fuzz.Guards(np.random.default_rng(seed))
    array = guards((2, 3, 2, 5), np.float32)
    array[...] = 1
    guards.check()
    block, inside = guards.made[0]
    block[np.flatnonzero(~inside)[-1 - seed]] = 0
    with pytest.raises(AssertionError, match="outside"):
        guards.check()
