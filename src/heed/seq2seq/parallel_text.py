"""A person's own parallel text: what is trained on, what is held out, and in which order it comes."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heed.seq2seq._hashing import permutation
from heed.seq2seq.corpus import Corpus, Pair
from heed.seq2seq.errors import TaskError

LEAST_PAIRS = 20
_HELD_OUT_SHARE = 0.05
_MOST_HELD_OUT = 1_000  # for validation, and as many again for evaluation
_POOL = 50  # batches whose sentences are sorted by length together
_ORDER_KEY, _BATCH_KEY = 0x74657874, 0x62617463


def read_pairs(corpus: Corpus) -> tuple[list[Pair], int]:
    """The sentence pairs of a corpus.

    Returns:
        The pairs where both sides hold something, and how many were left out because one is empty.

    Raises:
        TaskError: if a file cannot be read or holds a line that is no pair, or fewer than 20 pairs
            with different sources are left.
    """
    everything = list(corpus.pairs())
    pairs = [pair for pair in everything if all(pair)]
    distinct = len({source for source, _ in pairs})
    if distinct < LEAST_PAIRS:
        raise TaskError(
            f"parallel text must have at least {LEAST_PAIRS} different sentences. "
            f"Received: {distinct} in {corpus.source}"
        )
    return pairs, len(everything) - len(pairs)


def split(pairs: Sequence[Pair], held_out: int = 2) -> list[list[Pair]]:
    """Training pairs and held-out ones, by a hash of the source sentence.

    Each held-out part is 5 % of the different sentences, at least one and at most 1,000.
    Equal source sentences stay together, so that no held-out sentence was seen in training.

    Args:
        pairs: more different sentences than `held_out`.
        held_out: how many parts are held out.

    Returns:
        The training pairs, then each part.

    Example:
        >>> [len(part) for part in split([(str(i), str(-i)) for i in range(100)])]
        [90, 5, 5]
    """
    order = sorted(
        {source for source, _ in pairs}, key=lambda s: hashlib.blake2b(s.encode()).digest()
    )
    count = min(_MOST_HELD_OUT, max(1, int(len(order) * _HELD_OUT_SHARE)))
    part = {source: 1 + place // count for place, source in enumerate(order[: held_out * count])}
    parts: list[list[Pair]] = [[] for _ in range(1 + held_out)]
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
    order, batches = _epoch(len(lengths), size, seed, epoch)
    batch = batches[place]
    first = batch // _POOL * _POOL * size
    pool = order[first : first + _POOL * size]
    pool = pool[np.argsort(lengths[pool], kind="stable")]
    start = batch * size - first
    return pool[start : start + size]


@functools.lru_cache(maxsize=2)  # an epoch, and where it ends the next one
def _epoch(
    count: int, size: int, seed: int, epoch: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The order of the pairs of an epoch, filled up to whole batches, and the order of its batches."""
    per_epoch = -(-count // size)
    order = np.resize(permutation(count, _ORDER_KEY, seed, epoch), per_epoch * size)
    return order, permutation(per_epoch, _BATCH_KEY, seed, epoch)


def digest(path: Path) -> str:
    """The SHA-256 of a file, to tell whether it is the file that a run began with.

    Raises:
        TaskError: if it cannot be read.
    """
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                found.update(block)
    except OSError as error:
        raise TaskError(f"cannot read {path}: {error.strerror or error}") from None
    return found.hexdigest()
