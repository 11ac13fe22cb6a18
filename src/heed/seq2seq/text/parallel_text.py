"""Splits own parallel text into training and held-out parts."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heed.errors import TaskError
from heed.files import sha256_of

LEAST_PAIRS = 20
_HELD_OUT_SHARE = 0.05
_MOST_HELD_OUT = 1_000  # for validation, and as many again for evaluation
_FREQUENT = 4  # times as often as others
_HASHES: dict[tuple[int, ...], str] = {}  # of files that this process has read


def split(sources: NDArray[np.uint64], held_out: int = 2) -> NDArray[np.int8]:
    """Assign each pair to a part by a hash of its source sentence.

    Each held-out part is 5 % of the different sentences, at least one and at most 1,000. Equal source sentences stay
    together, so that no held-out sentence is seen in training. Sentences that come more than four times as often as
    the median are trained on: a single one could be most of the text.

    Args:
        sources: (P,) uint64, hashes of the source sentences.
        held_out: number of held-out parts.

    Returns:
        (P,) int8: 0 for training, then 1 to `held_out`.

    Raises:
        TaskError: if there are fewer than 20 different sentences.

    Example:
        >>> np.bincount(split(np.arange(100, dtype=np.uint64))).tolist()
        [90, 5, 5]
    """
    order = np.sort(sources)
    different = 1 + int(np.count_nonzero(order[1:] != order[:-1]))
    if different < LEAST_PAIRS:
        raise TaskError(
            f"parallel text must have at least {LEAST_PAIRS} different sentences. "
            f"Received: {min(different, len(order))}"
        )
    count = min(_MOST_HELD_OUT, max(1, int(different * _HELD_OUT_SHARE)))
    # At least half of them are not frequent. The last one may go on after the leading values.
    leading = order[: _count_leading(order, 2 * count * held_out + 2)]
    sentences, times = np.unique(leading, return_counts=True)
    chosen = sentences[times <= _FREQUENT * np.median(times)][: count * held_out]
    if not len(chosen):
        return np.zeros(len(sources), np.int8)
    places = np.minimum(np.searchsorted(chosen, sources), len(chosen) - 1)
    part = (1 + places // count).astype(np.int8)
    return np.where(chosen[places] == sources, part, 0).astype(np.int8)


def _count_leading(order: NDArray[np.uint64], count: int) -> int:
    """Return the number of leading sorted values that contain `count` distinct ones."""
    most = count
    while most < len(order) and len(np.unique(order[:most])) < count:
        most *= 2
    return most


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, to tell whether it has changed.

    A process reads a file again only if its place, its size or its times are new.

    Raises:
        TaskError: if it cannot be read.
    """
    if path.exists() and not path.is_file():
        raise TaskError(f"{path} must be a file that can be read again, not a pipe or a folder")
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            key = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
            if key not in _HASHES:
                _HASHES[key] = sha256_of(file)
            return _HASHES[key]
    except OSError as error:
        raise TaskError(f"cannot read {path}: {error.strerror or error}") from None
