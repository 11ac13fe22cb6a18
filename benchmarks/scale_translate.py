"""Translating files with two workers against two independent processes, of one thread each."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.scale import Row

LINES, ROUNDS = 40_000, 5  # lines of each of the two files
TRAINING = ["--preset", "tiny", "--steps", "100", "--batch-size", "32", "--validate-every", "1000"]
DECODING = ["--max-length", "24"]  # a run of few steps would not end its translations
ONE_THREAD = dict.fromkeys(
    ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"), "1"
)


def start(*words: str | Path) -> subprocess.Popen[bytes]:
    """Start the command, with one thread in each process."""
    return subprocess.Popen(
        [sys.executable, "-m", "heed", *map(str, words)],
        env={**os.environ, **ONE_THREAD},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # as workers have: Linux shares processors among sessions
    )


def time_processes(*commands: Sequence[str | Path]) -> float:
    """Return the seconds that commands take together, which must succeed."""
    begin = time.perf_counter()
    processes = [start(*words) for words in commands]
    for process in processes:
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, process.args)
    return time.perf_counter() - begin


def measure() -> Iterator[Row]:
    """Yield the rows of offline translation."""
    with tempfile.TemporaryDirectory(prefix="heed-scale-") as folder:
        yield from _measure(Path(folder))


def _measure(folder: Path) -> Iterator[Row]:
    run = folder / "run"
    time_processes(["train", "numbers", "--run", run, *TRAINING])
    (folder / "in").mkdir()
    numbers = random.Random(1)
    for name in ("a.txt", "b.txt"):
        lines = [f"{numbers.randrange(1_000_000)}\n" for _ in range(LINES)]
        (folder / "in" / name).write_text("".join(lines), encoding="utf-8")
    translate: list[str | Path] = ["translate", run, *DECODING, "--input"]
    workers, apart = [], []
    for number in range(ROUNDS):
        out = folder / f"out{number}"
        several: list[str | Path] = [
            "--output",
            out,
            "--launch",
            "local",
            "--workers",
            "2",
            "--device-threads",
            "2",
        ]
        workers.append(time_processes([*translate, folder / "in" / "*.txt", *several]))
        alone = [
            [*translate, folder / "in" / name, "--output", folder / name, "--device-threads", "1"]
            for name in ("a.txt", "b.txt")
        ]
        apart.append(time_processes(*alone))
        for name in ("a.txt", "b.txt"):
            if (out / name).read_bytes() != (folder / name).read_bytes():
                raise RuntimeError(f"two workers translate {name} to other bytes than one process")
    ratios = [other / own for own, other in zip(workers, apart, strict=True)]
    yield Row(
        "throughput of offline translation, 2 workers / 2 independent processes",
        statistics.median(ratios),
        0.95,
        note=f"median of {ROUNDS} rounds, start included; the same bytes; {2 * LINES:,} lines, tiny preset, one "
        f"thread a process, {min(workers):.0f} s",
    )
