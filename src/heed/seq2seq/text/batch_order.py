"""Which pairs are in the batch of a step: shuffled, of similar length, and reproducible."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heed.seq2seq.text.hashing import permutation, permute

_POOL = 50  # batches whose pairs are sorted by length together
_ORDER_KEY, _BATCH_KEY = 0x74657874, 0x62617463


class BatchOrder:
    """The batches of a training, each a function of the seed and its step alone, so that stops change nothing.

    Each epoch is shuffled and cut into pools of 50 batches. Each pool is sorted by length and cut into batches, so that
    there is little padding, and these are shuffled. Only the current pool is in memory, however many pairs there are.

    Args:
        lengths: (P, 2) int, source and target tokens of each pair.
        seed: int.
        size: pairs in a batch; the last one of an epoch is filled from its beginning.
        tokens: the most tokens of a batch on either side, padding included; then `size` only sets the size of pools,
            and a longer pair is a batch of its own. 0: batches of `size` pairs.
        counts: numbers of pairs in each corpus, in order; None: all are from one.
        weights: how often each pair of a corpus comes in an epoch, above 0; below 1 a share of them comes, others in
            each epoch. None: once.

    Example:
        >>> order = BatchOrder(np.array([[3, 3], [1, 1], [2, 2], [5, 5]]), seed=0, size=2)
        >>> sorted([*order.batch(0).tolist(), *order.batch(1).tolist()])
        [0, 1, 2, 3]
    """

    def __init__(
        self,
        lengths: ArrayLike,
        seed: int,
        size: int,
        tokens: int = 0,
        counts: Sequence[int] | None = None,
        weights: Sequence[float] | None = None,
    ) -> None:
        self._lengths = np.asarray(lengths)
        self._seed, self._size, self._tokens = seed, size, tokens
        self._counts = np.array(counts or [len(self._lengths)])
        drawn = self._counts * np.array(weights or [1.0] * len(self._counts))
        # Pairs of each corpus in an epoch.
        self._drawn = np.clip(np.rint(drawn), np.minimum(1, self._counts), None).astype(np.int64)
        self._epoch = int(self._drawn.sum())
        self._width = _POOL * size  # pairs in a pool
        self._pools = -(-self._epoch // self._width)  # in an epoch
        self._ends = [0]  # the first step of each pool so far
        self._batches = functools.lru_cache(maxsize=2)(self._cut)  # this pool and the next

    def batch(self, step: int) -> NDArray[np.int64]:
        """Return (B,) int64, the pairs of a step, 0 or more."""
        while self._ends[-1] <= step:
            self._ends.append(self._ends[-1] + self._count(len(self._ends) - 1))
        pool = bisect.bisect_right(self._ends, step) - 1
        batches = self._batches(pool)
        order = permutation(len(batches), _BATCH_KEY, self._seed, pool)
        return batches[order[step - self._ends[pool]]]

    def _places(self, pool: int) -> NDArray[np.int64]:
        """Return the places of a pool in its epoch, a multiple of the batch size if that is fixed."""
        start = pool % self._pools * self._width
        count = min(self._width, self._epoch - start)
        if not self._tokens:
            count = -(-count // self._size) * self._size
        return np.arange(start, start + count) % self._epoch

    def _count(self, pool: int) -> int:
        """Return the number of batches in a pool; with a bound on tokens it must be cut first."""
        return len(self._batches(pool)) if self._tokens else len(self._places(pool)) // self._size

    def _cut(self, pool: int) -> list[NDArray[np.int64]]:
        """Return the batches of a pool, the shortest pairs first."""
        pairs = self._pairs(self._places(pool), pool // self._pools)
        lengths = self._lengths[pairs]
        longest = lengths.max(axis=1)
        if not self._tokens:
            order = np.argsort(lengths.sum(axis=1), kind="stable")
            return np.split(pairs[order], len(pairs) // self._size)
        order = np.argsort(longest, kind="stable")
        starts = [0]
        for place, length in enumerate(longest[order].tolist()):  # that of its batch, so far
            if place > starts[-1] and (place + 1 - starts[-1]) * length > self._tokens:
                starts.append(place)
        return np.split(pairs[order], starts[1:])

    def _pairs(self, places: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        drawn = permute(places, self._epoch, _ORDER_KEY, self._seed, epoch)
        ends = np.cumsum(self._drawn)
        corpus = np.searchsorted(ends, drawn, side="right")
        # An epoch continues where the last one ended, so that each pair has its turn.
        turn = drawn - (ends - self._drawn)[corpus] + epoch * self._drawn[corpus]
        first = np.cumsum(self._counts) - self._counts
        return first[corpus] + turn % self._counts[corpus]
