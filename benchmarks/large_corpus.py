"""Measures training data from a large corpus: time to the first batch, time per batch, memory.

    python -m benchmarks.large_corpus [--pairs 10000000] [--folder FOLDER]

Writes that many pairs of made-up sentences (about 1 GB for ten million) into the folder, starts a run on them in a new
process and makes its batches without a model, so that only the data is timed. A third process makes one batch from the
middle of an epoch, as training does after an interruption, and checks that it is the same.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
BATCHES, LATER = 300, 50_000


def write(folder: Path, pairs: int) -> None:
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


def measure(folder: Path, later: int | None) -> dict[str, float | str]:
    """Measures seconds to the first batch, milliseconds per later batch and peak memory in MiB, in this process."""
    begin = time.perf_counter()
    from heed import seq2seq
    from heed.seq2seq.tasks.task import Task
    from heed.seq2seq.tensorflow_start import start_tensorflow

    if later is None:
        task: Task = seq2seq.TextTask.create(folder / "source", folder / "target")
        start_tensorflow()  # after the corpus, as in the command
        seq2seq.start_run(folder / "run", task)
    else:
        task = seq2seq.RunFolder.open(folder / "run").task()
    batch = task.training_batch(0, later or 0, 64)
    first = time.perf_counter() - begin
    results: dict[str, float | str] = {"seconds to the first batch": round(first, 1)}
    if later is None:
        begin = time.perf_counter()
        for step in range(1, BATCHES):
            task.training_batch(0, step, 64)
        each = 1e3 * (time.perf_counter() - begin) / (BATCHES - 1)
        results["milliseconds per batch of 64"] = round(each, 2)
        batch = task.training_batch(0, LATER, 64)
    results["peak memory, MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    results["batch"] = batch.target.tobytes().hex()
    return results


def main(arguments: list[str] | None = None) -> int:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, help="an empty folder for the corpus")
    parser.add_argument("--one", action="store_true", help="measure here, as JSON")
    parser.add_argument("--later", type=int, help="make only the batch of this step")
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(options.folder, options.later)))
        return 0
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        write(Path(name), options.pairs)
        size = sum(path.stat().st_size for path in Path(name).iterdir())
        print(f"{options.pairs:,} pairs, {size / 1e6:,.0f} MB")
        batches = set()
        for title, more in (("a new run", []), ("the run again", ["--later", str(LATER)])):
            command = [sys.executable, __file__, "--one", "--folder", name, *more]
            done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
            results = json.loads(done.stdout.splitlines()[-1])
            batches.add(results.pop("batch"))
            print(f"{title}: " + ", ".join(f"{name} {value:,}" for name, value in results.items()))
        print(f"the batch of step {LATER:,} is the same: {len(batches) == 1}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
