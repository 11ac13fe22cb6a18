"""Counter-based dropout: the seed and (b, n, i, j) decide whether a weight is kept.

So forward, backward, returned weights, every implementation and every block size agree without storing a mask. Each
row (b, n, i) and each column j gets a well-mixed 32-bit hash; their exclusive or, mixed again, is compared with the
rate. All arithmetic is modulo 2^32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops

from heed.ops.backends import current
from heed.ops.sizes import Size, Span

_GOLDEN = 0x9E3779B9
# Multipliers of a 32-bit finalizer with low bias (C. Wellons, "Hash Prospector", 2018).
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B
_MASK = 0xFFFFFFFF


def keep_mask(rate: float, seed: Any, batch: Size, heads: Size, queries: Span, keys: Span) -> Any:
    """Return booleans (B, N, t, s): True with probability 1 - rate.

    Args:
        rate: 0 <= rate < 1.
        seed: (2,) uint32.
        batch, heads: B and N.
        queries, keys: positions of the block in the whole score matrix.
    """
    words = _words(seed)
    key = _mix(_mix(_low(words[0] + _word(_GOLDEN))) ^ words[1])
    # Batch entry and head are mixed in turn, so that the result depends on neither B nor N.
    entry = _mix(key ^ _count(batch))
    head = _mix(entry[:, None, None] ^ _count(heads)[:, None])
    row = _mix(head ^ _words(queries.positions))
    column = _mix(_low(_words(keys.positions) + _word(_GOLDEN)))
    bits = _half_mix(row[..., None] ^ column)
    return bits >= _word(min(round(rate * 2**32), 2**32 - 1))


def _words(x: Any) -> Any:
    """Return integers as words of the backend, which hold 32 bits or more."""
    return ops.cast(x, current().WORD)


def _word(x: int) -> Any:
    return np.dtype(current().WORD).type(x)


def _count(number: Size) -> Any:
    return _words(ops.arange(number, dtype="int32"))


def _low(x: Any) -> Any:
    """Return the low 32 bits, which products and sums of longer words exceed."""
    return x if current().WORD == "uint32" else x & _MASK


def _shift(x: Any, count: int) -> Any:
    return ops.right_shift(x, _word(count))


def _half_mix(x: Any) -> Any:
    """Mix the high bits only, which decide a comparison."""
    x = _low(x * _word(_FIRST))
    x = x ^ _shift(x, 15)
    return _low(x * _word(_SECOND))


def _mix(x: Any) -> Any:
    x = _half_mix(x ^ _shift(x, 16))
    return x ^ _shift(x, 16)
