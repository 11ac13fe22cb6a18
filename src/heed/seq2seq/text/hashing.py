"""Random numbers as plain arithmetic: the same on every machine and NumPy version."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def mix(values: ArrayLike) -> NDArray[np.uint64]:
    """Scramble 64-bit integers with the output function of SplitMix64.

    Args:
        values: integers of any shape, taken modulo 2**64.

    Returns:
        uint64 of the same shape, one to one.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).

    Example:
        >>> int(mix(0)) == int(mix(0)), int(mix(0)) == int(mix(1))
        (True, False)
    """
    with np.errstate(over="ignore"):
        z = np.asarray(values).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def stream(count: int, *key: int) -> NDArray[np.uint64]:
    """Return the first `count` scrambled integers of the sequence named by `key`.

    Args:
        count: int, 0 or more.
        *key: integers, in order; another key gives another sequence.

    Returns:
        (count,) uint64.

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
    """Return the integers 0 to count - 1 in the scrambled order named by `key`.

    Args:
        count: int, 0 or more.
        *key: integers; another key gives another order.

    Returns:
        (count,) int64.

    Example:
        >>> sorted(permutation(5, 1).tolist())
        [0, 1, 2, 3, 4]
    """
    return np.argsort(stream(count, *key), kind="stable").astype(np.int64)


def permute(places: ArrayLike, count: int, *key: int) -> NDArray[np.int64]:
    """Return the numbers at some places of 0 to count - 1 in the scrambled order named by `key`.

    Time and memory grow with the number of places, not with `count`.

    Args:
        places: (N,) integers from 0 to count - 1.
        count: int, 1 or more.
        *key: integers; another key gives another order, which is not that of :func:`permutation`.

    Returns:
        (N,) int64.

    Source: Luby and Rackoff, "How to construct pseudorandom permutations from pseudorandom functions" (1988), four
        rounds; Black and Rogaway, "Ciphers with arbitrary finite domains" (2002), section 3, for any `count`.

    Example:
        >>> sorted(permute(range(5), 5, 1).tolist())
        [0, 1, 2, 3, 4]
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
