"""A person's own parallel text: two files; line n of one is the translation of line n of the other."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heed.seq2seq._hashing import permutation
from heed.seq2seq.errors import TaskError

LEAST_PAIRS = 20
_HELD_OUT_SHARE = 0.05
_MOST_HELD_OUT = 1_000  # for validation, and as many again for evaluation
_POOL = 50  # batches whose sentences are sorted by length together
_ORDER_KEY, _BATCH_KEY = 0x74657874, 0x62617463

Pair = tuple[str, str]  # a sentence and its translation


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, without line ends and outer spaces.

    Raises:
        TaskError: if the file is missing, is a folder, cannot be read, or is not UTF-8; the message
            names the first bad line.
    """
    data = _contents(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TaskError(f"{path} must be UTF-8 text; line {line:,} is not") from None
    # Only the line feed ends a line: splitlines would also split at form feeds and U+2028.
    return [line.strip() for line in io.StringIO(text, newline="\n")]


def read_pairs(source: Path, target: Path) -> tuple[list[Pair], int]:
    """The sentence pairs of two line-aligned files.

    Args:
        source: path of the sentences.
        target: path of their translations; line n belongs to line n of `source`.

    Returns:
        The pairs where both lines hold something, and how many were left out because one is empty.

    Raises:
        TaskError: if a file cannot be read, the numbers of lines differ, or fewer than 20 pairs
            with different sources are left.
    """
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise TaskError(
            "the two files must have as many lines. "
            f"Received: {source} with {len(sources):,}, {target} with {len(targets):,}"
        )
    pairs = [pair for pair in zip(sources, targets, strict=True) if all(pair)]
    distinct = len({source for source, _ in pairs})
    if distinct < LEAST_PAIRS:
        raise TaskError(
            f"parallel text must have at least {LEAST_PAIRS} different sentences. "
            f"Received: {distinct} in {source}"
        )
    return pairs, len(sources) - len(pairs)


def split(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Training, validation and evaluation pairs, by a hash of the source sentence.

    The two held-out parts are 5 % of the different sentences each, at least one and at most 1,000.
    Equal source sentences stay together, so that no held-out sentence was seen in training.

    Args:
        pairs: at least three different sentences.

    Returns:
        (training, validation, evaluation).

    Example:
        >>> [len(part) for part in split([(str(i), str(-i)) for i in range(100)])]
        [90, 5, 5]
    """
    order = sorted(
        {source for source, _ in pairs}, key=lambda s: hashlib.blake2b(s.encode()).digest()
    )
    count = min(_MOST_HELD_OUT, max(1, int(len(order) * _HELD_OUT_SHARE)))
    part = dict.fromkeys(order[:count], 1) | dict.fromkeys(order[count : 2 * count], 2)
    parts: tuple[list[Pair], list[Pair], list[Pair]] = ([], [], [])
    for pair in pairs:
        parts[part.get(pair[0], 0)].append(pair)
    return parts


def batch_of_step(lengths: NDArray[np.int64], seed: int, step: int, size: int) -> NDArray[np.int64]:
    """Which pairs make up a batch: a function of (seed, step), each pair once an epoch.

    Sentences of like length come together, so that little is padded: each epoch's order is cut into
    pools of 50 batches, each pool is sorted by length, and the batches are put in a new order.

    Args:
        lengths: (P,) int, the length of each pair.
        seed: int.
        step: int, 0 or more.
        size: int; the last batch of an epoch is filled from its beginning.

    Returns:
        (size,) int64, places in `lengths`.

    Example:
        >>> lengths = np.array([3, 1, 2, 5])
        >>> epoch = [batch_of_step(lengths, 0, step, 2).tolist() for step in (0, 1)]
        >>> sorted(sum(epoch, []))
        [0, 1, 2, 3]
    """
    per_epoch = -(-len(lengths) // size)
    epoch, place = divmod(step, per_epoch)
    order = np.resize(permutation(len(lengths), _ORDER_KEY, seed, epoch), per_epoch * size)
    batch = permutation(per_epoch, _BATCH_KEY, seed, epoch)[place]
    first = batch // _POOL * _POOL * size
    pool = order[first : first + _POOL * size]
    pool = pool[np.argsort(lengths[pool], kind="stable")]
    start = batch * size - first
    return pool[start : start + size]


def digest(path: Path) -> str:
    """The SHA-256 of a file, to tell whether it is the file that a run began with.

    Raises:
        TaskError: if it cannot be read.
    """
    return hashlib.sha256(_contents(path)).hexdigest()


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TaskError(f"cannot read {path}: {error.strerror or error}") from None
