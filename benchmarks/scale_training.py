"""Training on two processes against one: the losses, the weights after a kill, and the throughput."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.scale import Row

BASE = ["--preset", "base", "--batch-size", "64", "--dropout", "0", "--validate-every", "1000"]
STEPS, WARM_UP = 31, 10  # metrics come every ten steps; the last step validates
ONE_THREAD = dict.fromkeys(
    ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"), "1"
)
LOSS_STEPS = 50


def start(run: Path, *options: str, workers: int = 1) -> subprocess.Popen[bytes]:
    """Start a training on numbers, of one thread in each process."""
    several = ["--launch", "local", "--workers", str(workers)] if workers > 1 else []
    command = [sys.executable, "-m", "heed", "train", "numbers", "--run", str(run)]
    return subprocess.Popen(
        [*command, *options, *several],
        env={**os.environ, **ONE_THREAD},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def finish(*processes: subprocess.Popen[bytes]) -> None:
    """Wait for trainings, which must succeed."""
    for process in processes:
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, process.args)


def read(run: Path) -> list[dict[str, float]]:
    """Return the metrics of a run."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def seconds_per_step(run: Path) -> float:
    """Return the time of a step after the warm-up, in which graphs are compiled."""
    by_step = {record["step"]: record["seconds"] for record in read(run)}
    last = max(step for step in by_step if step < STEPS)
    return (by_step[last] - by_step[WARM_UP]) / (last - WARM_UP)


def measure() -> Iterator[Row]:
    """Yield the rows of training."""
    with tempfile.TemporaryDirectory(prefix="heed-scale-") as folder:
        yield from _losses(Path(folder))
        yield from _exact(Path(folder))
        yield from _throughput(Path(folder))


def _losses(folder: Path) -> Iterator[Row]:
    options = ["--steps", str(LOSS_STEPS), "--batch-size", "32", "--dropout", "0"]
    options += ["--validate-every", "1000", "--seed", "3"]
    for workers in (1, 2):
        finish(start(folder / f"losses{workers}", *options, workers=workers))
    one, two = (np.array([r["loss"] for r in read(folder / f"losses{n}")]) for n in (1, 2))
    yield Row(
        f"largest difference of the loss, 2 processes and 1, {LOSS_STEPS} steps, same batches",
        float(np.abs(one - two).max()),
        bar=1e-5,
        at_most=True,
        note=f"means over 10 steps; the loss falls to {two[-1]:.2f}",
    )


def _exact(folder: Path) -> Iterator[Row]:
    """Yield the default numbers task, to its end."""
    for workers in (1, 2):
        finish(start(folder / f"exact{workers}", workers=workers))
    one, two = (read(folder / f"exact{n}")[-1]["validation_exact"] for n in (1, 2))
    yield Row(
        "exact match of the numbers task, difference of 2 processes and 1",
        abs(one - two),
        bar=0.01,
        at_most=True,
        note=f"{one:.1%} and {two:.1%}; dropout differs",
    )


def _throughput(folder: Path) -> Iterator[Row]:
    """Pairs a second: each process has the batch of the single one."""
    options = [*BASE, "--steps", str(STEPS)]
    double = [*options, "--batch-size", "128"]
    finish(start(folder / "one", *options))
    finish(start(folder / "two", *double, workers=2))
    finish(start(folder / "a", *options), start(folder / "b", *options))
    alone = seconds_per_step(folder / "one")
    together = seconds_per_step(folder / "two")
    apart = (seconds_per_step(folder / "a") + seconds_per_step(folder / "b")) / 2
    note = "base preset, one thread each, 64 pairs a process"
    yield Row("throughput of 2 processes / 1 process", 2 * alone / together, 1.7, note=note)
    yield Row("throughput of 2 independent processes / 1 process", 2 * alone / apart, note=note)
    yield Row("throughput of 2 processes / 2 independent ones", apart / together, note=note)
