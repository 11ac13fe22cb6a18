"""heed on PyTorch and JAX against what those frameworks ship: `python -m benchmarks backends`.

Each backend runs in a process of its own, heed and its peer alternately in the same one; `MEASUREMENTS` names the files
with the rows.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.report import fill
from benchmarks.results import describe_environment
from benchmarks.scale import Row, table

NAME, DESCRIPTION = "backends", "heed on PyTorch and JAX against their own attention"
ROUNDS = 15
# Module, function and Keras' backend of each measurement. The function takes the number of rounds and yields rows.
MEASUREMENTS = {
    "torch": ("backend_torch", "measure", "torch"),
    "torch-call": ("backend_torch", "measure_call", "torch"),
    "jax": ("backend_jax", "measure", "jax"),
    "jax-memory": ("backend_jax", "measure_memory", "jax"),
    "torch-gpt2": ("backend_gpt2", "measure", "torch"),
    "jax-gpt2": ("backend_gpt2", "measure", "jax"),
    "jax-generate": ("backend_gpt2", "measure_generate", "jax"),
}
# A round of quick calls repeats them for so long.
_ROUND_SECONDS = 0.02


def alternate(*sides: Callable[[], Any], rounds: int) -> list[float]:
    """The seconds of a call of each side: the lower quartile of rounds in turn, which reverse their order each time.

    Args:
        sides: functions that return when their result is there. Each runs twice before.
        rounds: at least 2.
    """
    calls = []
    for side in sides:
        side()
        calls.append(max(1, int(_ROUND_SECONDS / max(1e-9, _seconds(side, 1)))))
    samples: list[list[float]] = [[] for _ in sides]
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            for place in range(len(sides))[:: 1 if number % 2 == 0 else -1]:
                samples[place].append(_seconds(sides[place], calls[place]))
    finally:
        gc.enable()
    return [statistics.quantiles(column, n=4)[0] for column in samples]


def _seconds(run: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def ratio(
    name: str, heed: Callable[[], Any], peer: Callable[[], Any], bar: float | None, rounds: int
) -> Row:
    """A row of the peer's time / heed's time."""
    ours, theirs = alternate(heed, peer, rounds=rounds)
    return Row(name, theirs / ours, bar, note=f"heed {_readable(ours)}, peer {_readable(theirs)}")


def _readable(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures; the status is 0 if every row was measured and no bar is missed."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks backends", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASUREMENTS))
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="of each side (default %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch and XLA (default 2)")
    parser.add_argument(
        "--markdown",
        type=Path,
        metavar="FILE",
        help="fills its section of this machine's instruction set: 'figures: backends-avx2'",
    )
    parser.add_argument(
        "--results", type=Path, default=Path(__file__).parent / "results", metavar="FOLDER"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    for name in options.names:
        if name not in MEASUREMENTS:
            parser.error(f"there is no measurement {name!r}: {', '.join(MEASUREMENTS)}")
    for name, least in (("rounds", 2), ("threads", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(options, name)}")
    if options.child:
        return _measure_here(options.child, options.rounds)
    command = shlex.join(["python", "-m", "benchmarks", NAME, *words])
    about = describe_environment(command, options.threads)
    section = f"{NAME}-{about['instruction_set']}"
    if options.markdown is not None:  # before the minutes of measuring
        try:
            fill(options.markdown.read_text(encoding="utf-8"), section, "")
        except (OSError, ValueError) as error:
            parser.error(f"--markdown: {error}")
    rows, problems = [], []
    for name in options.names or MEASUREMENTS:
        try:
            for row in _measure_in_child(name, options.rounds, options.threads):
                rows.append(row)
                print(f"  {row.name}: {row.value:.3g} {row.unit}", file=sys.stderr, flush=True)
        except ChildProcessError as error:
            problems.append(f"not measured: {name}: {error}")
    options.results.mkdir(parents=True, exist_ok=True)
    record = {"suite": NAME, "about": about, "rows": [asdict(row) for row in rows]}
    text = json.dumps(record, indent=1) + "\n"
    (options.results / f"{NAME}.json").write_text(text, encoding="utf-8")
    described = describe(about)
    page = "\n\n".join([table(rows), *problems, described])
    print(f"\n## {NAME}: {DESCRIPTION}\n\n{page}\n")
    if options.markdown is not None:
        whole = options.markdown.read_text(encoding="utf-8")
        options.markdown.write_text(fill(whole, section, page), encoding="utf-8")
    return 1 if problems or any(row.met is False for row in rows) else 0


def describe(about: dict[str, Any]) -> str:
    """Machine and versions, as a sentence."""
    versions = ", ".join(f"{name} {about[name]}" for name in ("heed", "keras", "torch", "jax"))
    return (
        f"{about['day']}, {about['processor']}, {about['instruction_set']}, {about['threads']} threads; {versions}. "
        f"Ratios are the peer's time / heed's. `{about['command']}`"
    )


def _measure_here(name: str, rounds: int) -> int:
    """Prints the rows of a measurement, a line of JSON each."""
    module, function, _ = MEASUREMENTS[name]
    measure = getattr(importlib.import_module(f"benchmarks.{module}"), function)
    for row in measure(rounds):
        print(json.dumps(asdict(row)), flush=True)
    return 0


def _measure_in_child(name: str, rounds: int, threads: int) -> Iterator[Row]:
    """The rows of a measurement, from a process with the right backend and number of threads.

    Raises:
        ChildProcessError: if it fails, with the last line of its errors.
    """
    environment = os.environ | {
        "KERAS_BACKEND": MEASUREMENTS[name][2],
        "OMP_NUM_THREADS": str(threads),
        "NPROC": str(threads),
    }
    command = [sys.executable, "-m", "benchmarks", NAME, "--child", name, "--rounds", str(rounds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            yield Row(**json.loads(line))
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"its status is {done.returncode}"]
        raise ChildProcessError(lines[-1][:300])
