"""Jobs of two processes on this machine against one, of one thread each: training, and translating files."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.results import Row
from benchmarks.turns import SMALLER, bar, take_turns

_ONE_THREAD = dict.fromkeys(
    ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"), "1"
)
_BASE = ["--preset", "base", "--batch-size", "64", "--dropout", "0", "--validate-every", "1000"]
_STEPS, _WARM_UP = 31, 10  # metrics come every ten steps; the last step validates
_LOSS_STEPS = 50
_LINES = 400 if SMALLER else 40_000  # of each of the two files
_TINY = ["--preset", "tiny", "--steps", "100", "--batch-size", "32", "--validate-every", "1000"]


def run_all(*commands: Sequence[str | Path]) -> float:
    """Return the seconds that commands of heed take together, which must succeed."""
    begin = time.perf_counter()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "heed", *map(str, words)],
            env={**os.environ, **_ONE_THREAD},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # as workers have: Linux shares processors among sessions
        )
        for words in commands
    ]
    for process in processes:
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, process.args)
    return time.perf_counter() - begin


def _train(run: Path, *options: str, workers: int = 1) -> list[str | Path]:
    several = ["--launch", "local", "--workers", str(workers)] if workers > 1 else []
    return ["train", "numbers", "--run", run, *options, *several]


def _metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def _seconds_per_step(run: Path) -> float:
    """Return the time of a step after the warm-up, in which graphs are compiled."""
    by_step = {record["step"]: record["seconds"] for record in _metrics(run)}
    last = max(step for step in by_step if step < _STEPS)
    return (by_step[last] - by_step[_WARM_UP]) / (last - _WARM_UP)


def measure_training(rounds: int) -> Iterator[Row]:
    """Yield the losses on two processes and on one, the exact match at the end, and the throughput."""
    del rounds
    with tempfile.TemporaryDirectory(prefix="heed-scale-") as name:
        folder = Path(name)
        options = ["--steps", str(_LOSS_STEPS), "--batch-size", "32", "--dropout", "0"]
        options += ["--validate-every", "1000", "--seed", "3"]
        one, two = (
            np.array([record["loss"] for record in metrics])
            for metrics in _train_both(folder / "losses", *options)
        )
        title = (
            f"largest difference of the loss, 2 processes and 1, {_LOSS_STEPS} steps, same batches"
        )
        note = f"means over 10 steps; the loss falls to {two[-1]:.2f}"
        yield Row(title, float(np.abs(one - two).max()), 1e-5, at_most=True, note=note)
        # Of the default numbers task, at its end.
        exact = [metrics[-1]["validation_exact"] for metrics in _train_both(folder / "exact")]
        title = "exact match of the numbers task, difference of 2 processes and 1"
        note = f"{exact[0]:.1%} and {exact[1]:.1%}; dropout differs"
        yield Row(title, abs(exact[0] - exact[1]), 0.01, at_most=True, note=note)
        yield from _measure_throughput(folder)


def _train_both(folder: Path, *options: str) -> list[list[dict[str, float]]]:
    """Return the metrics of training on one process and on two."""
    for workers in (1, 2):
        run_all(_train(folder / str(workers), *options, workers=workers))
    return [_metrics(folder / str(workers)) for workers in (1, 2)]


def _measure_throughput(folder: Path) -> Iterator[Row]:
    """Yield pairs a second: each process has the batch of the single one."""
    options = [*_BASE, "--steps", str(_STEPS)]
    run_all(_train(folder / "one", *options))
    run_all(_train(folder / "two", *options, "--batch-size", "128", workers=2))
    run_all(_train(folder / "a", *options), _train(folder / "b", *options))
    alone, together = (_seconds_per_step(folder / name) for name in ("one", "two"))
    apart = statistics.fmean(_seconds_per_step(folder / name) for name in "ab")
    note = "base preset, one thread each, 64 pairs a process"
    yield Row("throughput of 2 processes / 1 process", 2 * alone / together, 1.7, note=note)
    yield Row("throughput of 2 independent processes / 1 process", 2 * alone / apart, note=note)
    yield Row("throughput of 2 processes / 2 independent ones", apart / together, note=note)


def measure_translate(rounds: int) -> Iterator[Row]:
    """Yield the throughput of translating two files with two workers against two independent processes."""
    with tempfile.TemporaryDirectory(prefix="heed-scale-") as name:
        folder = Path(name)
        run, names = folder / "run", ("a.txt", "b.txt")
        run_all(_train(run, *_TINY))
        (folder / "in").mkdir()
        numbers = random.Random(1)
        for name in names:
            lines = [f"{numbers.randrange(1_000_000)}\n" for _ in range(_LINES)]
            (folder / "in" / name).write_text("".join(lines), encoding="utf-8")
        # A run of few steps would not end its translations.
        translate: list[str | Path] = ["translate", run, "--max-length", "24", "--input"]
        several = ["--launch", "local", "--workers", "2", "--device-threads", "2"]

        def together() -> float:
            with tempfile.TemporaryDirectory(dir=folder) as out:
                words = [*translate, folder / "in" / "*.txt", "--output", out, *several]
                seconds = run_all(words)
                for name in names:
                    found[name].add((Path(out) / name).read_bytes())
            return seconds

        def apart() -> float:
            more = ["--device-threads", "1", "--output"]
            seconds = run_all(
                *([*translate, folder / "in" / name, *more, folder / name] for name in names)
            )
            for name in names:
                found[name].add((folder / name).read_bytes())
                (folder / name).unlink()
            return seconds

        found: dict[str, set[bytes]] = {name: set() for name in names}
        workers, independent = take_turns([together, apart], rounds)
        if any(len(texts) > 1 for texts in found.values()):
            raise RuntimeError("two workers translate a file to other bytes than one process")
        ratios = [other / own for own, other in zip(workers, independent, strict=True)]
        yield Row(
            "throughput of offline translation, 2 workers / 2 independent processes",
            statistics.median(ratios),
            bar(0.95),
            note=f"median of {rounds} rounds, start included; the same bytes; {2 * _LINES:,} lines, tiny preset, one "
            f"thread a process, {min(workers):.0f} s",
        )
