"""Tiny runs for tests: the real task and loop with a model that trains in a blink."""

import functools
from pathlib import Path

import numpy as np

TINY = {
    "width": 16,
    "num_heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "feed_forward_width": 16,
    "batch_size": 4,
    "warmup_steps": 4,
    "steps": 12,
    "validate_every": 4,
    "checkpoint_every": 3,  # between validations too
    "dropout": 0.2,  # so that the state of the random generators matters
    "seed": 5,
}


@functools.lru_cache
def numbers(*languages: str):
    """Return the task of these languages; its tokenizer is learned once a process."""
    from heed.seq2seq import NumbersTask

    return NumbersTask(languages)


def start(path: Path, **options):
    """Return a new tiny run on numbers, with a task whose validation is quick."""
    from heed.seq2seq import start_run

    return start_run(path, numbers(*options.pop("languages", ("en",))), **{**TINY, **options})


def weights(run) -> list[np.ndarray]:
    """Return the final weights of a run."""
    from heed.seq2seq.runs import checkpoint

    return checkpoint.load(run.weights)[0]["weight"]


def same(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    """Return whether two lists of arrays are equal bit for bit."""
    return len(first) == len(second) and all(
        one.dtype == other.dtype and one.tobytes() == other.tobytes()
        for one, other in zip(first, second, strict=True)
    )


def write_parallel_text(folder: Path, count: int = 60) -> tuple[Path, Path]:
    """Return two line-aligned files: words, and the same words backwards."""
    letters = "abcdefghij"
    lines = [" ".join(letters[int(d)] * 2 for d in str(1000 + 37 * i)) for i in range(count)]
    source, target = folder / "source.txt", folder / "target.txt"
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    target.write_text("".join(f"{line[::-1]}é\n" for line in lines), encoding="utf-8")
    return source, target
