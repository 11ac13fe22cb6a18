"""Random numbers as plain arithmetic: the same on every machine and NumPy version."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def mix(values: ArrayLike) -> NDArray[np.uint64]:
    """Scramble integers, taken modulo 2**64, one to one with the output function of SplitMix64.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
    """
    with np.errstate(over="ignore"):
        z = np.asarray(values).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def stream(count: int, *key: int) -> NDArray[np.uint64]:
    """Return (count,) uint64, the first scrambled integers of the sequence that the key names.

    Example:
        >>> bool((stream(4, 1, 2)[:2] == stream(2, 1, 2)).all())
        True
    """
    state = np.zeros((), np.uint64)
    for part in key:
        state = mix(state ^ np.uint64(part % 2**64))
    with np.errstate(over="ignore"):
        return mix(np.arange(count, dtype=np.uint64) + state)


def permutation(count: int, *key: int) -> NDArray[np.int64]:
    """Return (count,) int64, the integers 0 to count - 1 in the scrambled order that the key names.

    Example:
        >>> sorted(permutation(5, 1).tolist())
        [0, 1, 2, 3, 4]
    """
    return np.argsort(stream(count, *key), kind="stable").astype(np.int64)


def permute(places: ArrayLike, count: int, *key: int) -> NDArray[np.int64]:
    """Return the numbers at (N,) places of 0 to count - 1 in the scrambled order that the key names.

    Time and memory grow with the number of places, not with `count`. The order is not that of :func:`permutation`.

    Source: Luby and Rackoff, "How to construct pseudorandom permutations from pseudorandom functions" (1988), four
        rounds; Black and Rogaway, "Ciphers with arbitrary finite domains" (2002), section 3, for any `count`.
    """
    half = np.uint64(max(1, -(-(count - 1).bit_length() // 2)))  # bits: two halves hold every place
    mask = (np.uint64(1) << half) - np.uint64(1)
    rounds = stream(4, *key)
    out = np.asarray(places).astype(np.uint64)
    outside = np.arange(len(out))
    while len(outside):  # scramble again until the number is below `count`
        left, right = out[outside] >> half, out[outside] & mask
        for number in rounds:
            left, right = right, left ^ (mix(right ^ number) & mask)
        out[outside] = (left << half) | right
        outside = outside[out[outside] >= count]
    return out.astype(np.int64)
