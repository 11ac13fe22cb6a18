"""Training data from a large corpus: time to the first batch, time per batch, memory.

Writes pairs of made-up sentences (about 1 GB for ten million), starts a run on them in a new process and makes its
batches without a model, so that only the data is timed. A third process makes one batch from the middle of an epoch, as
training does after an interruption; it must be the same.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.results import Row
from benchmarks.turns import SMALLER
from benchmarks.worker import peak_memory
from heed.processes.child import Channel, Child

_PAIRS = 20_000 if SMALLER else 10_000_000
_BATCHES, _LATER = 300, 50_000


def _write(folder: Path, pairs: int) -> None:
    """Write two files of so many lines, each of four to sixteen words from a vocabulary with a long tail."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(rng.choice(letters, length)) for length in rng.integers(2, 10, 20_000)]
    for name in ("source", "target"):
        with (folder / name).open("w") as file:
            for first in range(0, pairs, 100_000):
                count = min(100_000, pairs - first)
                lengths = rng.integers(4, 17, count)
                chosen = np.minimum(rng.zipf(1.3, lengths.sum()), len(words)) - 1
                drawn = [words[i] for i in chosen.tolist()]
                ends = np.cumsum(lengths).tolist()
                file.writelines(
                    " ".join(drawn[end - length : end]) + "\n"
                    for end, length in zip(ends, lengths.tolist(), strict=True)
                )


def _measure_here(folder: Path, again: bool, channel: Channel) -> None:
    """Send seconds to the first batch, milliseconds per later batch and peak memory in MiB, of this process."""
    begin = time.perf_counter()
    from heed import seq2seq
    from heed.seq2seq.tasks.task import Task
    from heed.seq2seq.tensorflow_start import start_tensorflow

    if not again:
        task: Task = seq2seq.TextTask.create(folder / "source", folder / "target")
        start_tensorflow()  # after the corpus, as in the command
        seq2seq.start_run(folder / "run", task)
    else:
        task = seq2seq.RunFolder.open(folder / "run").task()
    batch = task.training_batch(0, _LATER if again else 0, 64)
    first = time.perf_counter() - begin
    results = {"seconds to the first batch": round(first, 1)}
    if not again:
        begin = time.perf_counter()
        for step in range(1, _BATCHES):
            task.training_batch(0, step, 64)
        each = 1e3 * (time.perf_counter() - begin) / (_BATCHES - 1)
        results["milliseconds per batch of 64"] = round(each, 2)
        batch = task.training_batch(0, _LATER, 64)
    results["peak memory, MiB"] = peak_memory()
    channel.send((results, batch.target.tobytes()))


def measure(rounds: int) -> Iterator[Row]:
    """Yield the figures of a new run, and those of the run again."""
    del rounds
    with tempfile.TemporaryDirectory() as name:
        _write(Path(name), _PAIRS)
        size = sum(path.stat().st_size for path in Path(name).iterdir())
        note = f"{_PAIRS:,} pairs, {size / 1e6:,.0f} MB"
        batches = set()
        for title, again in (("a new run", False), ("the run again", True)):
            child = Child(functools.partial(_measure_here, Path(name), again))
            with contextlib.closing(child):
                results, batch = child.receive()
            batches.add(batch)
            for figure, value in results.items():
                yield Row(f"{title}: {figure}", value, note=note)
        yield Row(f"different batches of step {_LATER:,}", len(batches), 1, at_most=True)
