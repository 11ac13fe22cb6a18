"""Compares the block sizes that ship with others, on this machine: builds the core once for each, and times its calls.

    python -m benchmarks tune
    python -m benchmarks tune --instruction-set avx2 --size kKeyBlock kDepth

Sizes are constants of `native/kernels/tuning.h`: a copy of the sources is built with another number. It needs CMake and
a C++ compiler, and takes some 15 seconds of a processor for each size.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import instruction_sets
from benchmarks.turns import take_turns
from heed.environment import describe_caches

# The C interface by ctypes. mypy does not check tests.
core: Any = importlib.import_module("tests.native.core")
NATIVE = Path(__file__).resolve().parents[1] / "native"
TABLE = Path("kernels/tuning.h")
BASES = {"amx": ["avx512"], "avx512_bf16": ["avx512"]}  # sets that a set takes most kernels from
LEAST_GAIN = 1.03  # less is noise


@dataclasses.dataclass(frozen=True)
class Size:
    """A constant of the table: other numbers to try, and the calls that it matters to."""

    name: str
    others: tuple[int, ...]
    calls: tuple[str, ...]


SIZES = (
    Size("kKeyBlock", (64, 256), ("forward", "causal", "training", "few queries", "bfloat16")),
    Size("kTilesTogether", (4, 16), ("training",)),
    Size("kMostDepth", (64, 128), ("forward", "wide heads", "training")),
    Size("kDepth", (32, 96), ("forward", "wide heads", "training")),
    Size("kVectors", (2,), ("forward", "causal", "training")),
    Size("kTogether", (2,), ("forward", "causal")),
    Size("kAdditiveKeys", (16, 64), ("additive training",)),
    Size("kSplitBlocks", (2, 8), ("few queries",)),
    Size("kProductColumns", (96, 384), ("product of few rows",)),
    Size("kProductDepth", (16, 64), ("product of few rows",)),
)


def set_size(text: str, name: str, number: int) -> str:
    """Return the table of sizes with another number for a constant.

    Raises:
        ValueError: if the table does not define the constant exactly once.
    """
    text, count = re.subn(rf"(?<=[ ]){name} = [^;,]+(?=[;,])", f"{name} = {number}", text)
    if count != 1:
        raise ValueError(f"{TABLE} must define `{name}` once. Received: {count} definitions")
    return text


def shipped_size(text: str, name: str) -> str:
    """Return what the table has for a constant."""
    found = re.search(rf" {name} = ([^;,]+)[;,]", text)
    return "" if found is None else found[1]


def build(folder: Path, instruction_set: str, name: str = "", number: int = 0) -> Any:
    """Return the core with the kernels of one instruction set, and another number for a size if it is named.

    Raises:
        RuntimeError: if it cannot be built.
    """
    sources = folder / "native"
    shutil.copytree(NATIVE, sources)
    if name:
        table = sources / TABLE
        table.write_text(
            set_size(table.read_text(encoding="utf-8"), name, number), encoding="utf-8"
        )
    makefile = sources / "CMakeLists.txt"
    kept = "|".join([instruction_set, *BASES.get(instruction_set, [])])
    lines = makefile.read_text(encoding="utf-8").splitlines(keepends=True)
    others = re.compile(rf"heed_instruction_set\((?!({kept}|name) )")
    makefile.write_text("".join(line for line in lines if not others.match(line)), encoding="utf-8")
    for command in (
        ["cmake", "-S", str(sources), "-B", str(folder / "build")],
        ["cmake", "--build", str(folder / "build"), "-j2", "--target", "heed_core"],
    ):
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed: {made.stderr.strip()[-500:]}")
    return core.load(folder / "build" / "libheed_core.so")


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _attention(
    library: Any, length: int, width: int, threads: int, options: dict[str, Any]
) -> Callable[[], None]:
    dtype = options.pop("dtype", np.float32)
    queries = options.pop("queries", length)
    batch = options.pop("batch", 1)
    backward = options.pop("backward", False)
    query, key, value = (
        _random(batch, n, 8, width).astype(dtype) for n in (queries, length, length)
    )
    call = core.Call(library, query, key, value, **options)

    def run() -> None:
        output, _ = call.forward(threads)
        if backward:
            call.backward(output, query, threads=threads)

    return run


def _additive(library: Any, threads: int) -> Callable[[], None]:
    query, key, value = (_random(2, 256, 128) for _ in range(3))
    call = core.AdditiveCall(library, query, key, value, _random(128))

    def run() -> None:
        output, _ = call.forward(threads)
        call.backward(output, value, threads=threads)

    return run


def _product(library: Any, threads: int) -> Callable[[], None]:
    x, weights = _random(8, 1024), _random(1024, 4096)
    y = np.empty((8, 4096), np.float32)
    call = core.Product(
        rows=core.Rows.of(x), groups=1, columns=4096, x=x.ctypes.data, weights=weights.ctypes.data
    )

    def run(_: tuple[np.ndarray, ...] = (x, weights, y)) -> None:
        library.heed_product(call, y.ctypes.data, threads)

    return run


def prepare(name: str, library: Any, threads: int) -> Callable[[], None]:
    """Return a call of a library, ready to run."""
    if name == "additive training":
        return _additive(library, threads)
    if name == "product of few rows":
        return _product(library, threads)
    calls: dict[str, tuple[int, int, dict[str, Any]]] = {
        "forward": (1024, 64, {}),
        "causal": (1024, 64, {"rules": [{"rule": core.WINDOW, "right": 0}]}),
        "training": (512, 64, {"backward": True}),
        "wide heads": (512, 128, {}),
        "few queries": (2048, 64, {"queries": 1, "batch": 4}),
        "bfloat16": (1024, 64, {"dtype": "bfloat16"}),
    }
    length, width, options = calls[name]
    if name == "bfloat16":
        import ml_dtypes

        options["dtype"] = ml_dtypes.bfloat16
    return _attention(library, length, width, threads, options)


def compare(runs: list[Callable[[], None]], rounds: int, clock: Callable[[], float]) -> list[float]:
    """How many times as fast as the first each run is: the lower quartile of rounds in turn."""

    def timed(run: Callable[[], None]) -> float:
        start = clock()
        run()
        return clock() - start

    for run in runs:
        run()
    samples = take_turns([functools.partial(timed, run) for run in runs], rounds)
    quartiles = [statistics.quantiles(own, n=4)[0] for own in samples]
    return [quartiles[0] / quartile for quartile in quartiles]


def table(rows: Iterable[tuple[str, str, int, dict[str, float]]]) -> str:
    """Write a table of name, number that ships, other number, and how many times as fast each call is with it."""
    lines = ["| size | ships | other | speed with the other one |", "| --- | --- | --- | --- |"]
    for name, ships, number, speeds in rows:
        each = ", ".join(f"{call} {speed:.2f}" for call, speed in speeds.items())
        faster = all(speed >= 1 for speed in speeds.values()) and max(speeds.values()) >= LEAST_GAIN
        lines.append(
            f"| {name} | {ships} | {number} | {'**' if faster else ''}{each}{'**' if faster else ''} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Parse the arguments and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks tune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--size",
        nargs="+",
        choices=[size.name for size in SIZES],
        metavar="NAME",
        help="only these; known: %(choices)s",
    )
    parser.add_argument("--instruction-set", metavar="NAME", help="of this machine's, such as avx2")
    parser.add_argument(
        "--rounds", type=int, default=60, help="samples of each (default %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=1, help="of each call (default %(default)s)")
    options = parser.parse_args(arguments)
    for name, least in (("rounds", 2), ("threads", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(options, name)}")
    known = instruction_sets()
    chosen = options.instruction_set or next(iter(known), None)
    if chosen not in known:
        parser.error(
            f"--instruction-set must be one of this machine's ({', '.join(known)}), got {chosen}"
        )
    os.environ["HEED_INSTRUCTION_SET"] = chosen
    # One thread is the caller's own, whose processor time other programs disturb less.
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    text = (NATIVE / TABLE).read_text(encoding="utf-8")
    rows = []
    with tempfile.TemporaryDirectory(prefix="heed-tune-") as temporary:
        folder = Path(temporary)
        ships = build(folder / "ships", chosen)
        for size in SIZES:
            if options.size and size.name not in options.size:
                continue
            others = [
                build(folder / f"{size.name}-{number}", chosen, size.name, number)
                for number in size.others
            ]
            speeds: dict[int, dict[str, float]] = {number: {} for number in size.others}
            for call in size.calls:
                runs = [prepare(call, library, options.threads) for library in [ships, *others]]
                found = compare(runs, options.rounds, clock)[1:]
                for number, speed in zip(size.others, found, strict=True):
                    speeds[number][call] = speed
            for number, of_calls in speeds.items():
                rows.append((size.name, shipped_size(text, size.name), number, of_calls))
                print(f"  {size.name} = {number}: {of_calls}", file=sys.stderr, flush=True)
    threads = "1 thread" if options.threads == 1 else f"{options.threads} threads"
    print(
        f"{chosen}; {describe_caches()}; {threads}; bold: faster by 3 % or more, and nowhere slower\n"
    )
    print(table(rows))
    return 0
