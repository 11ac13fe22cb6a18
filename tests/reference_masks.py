"""Every kind of mask as a dense boolean array (B,1,T,S), filled by plain loops.

Written from the definitions, independently of the package and its index arithmetic. True = attend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray


def resolve_align(align: Any, batch: int, queries: int, keys: int) -> list[int]:
    """Return the key position of query 0, one number per batch item."""
    if isinstance(align, str):
        start = {"top_left": 0, "bottom_right": keys - queries}[align]
        return [start] * batch
    return [int(a) for a in np.broadcast_to(np.asarray(align), (batch,))]


def _fill(batch: int, queries: int, keys: int, rule: Callable[[int, int, int], bool]) -> Array:
    dense = np.zeros((batch, 1, queries, keys), bool)
    for b in range(batch):
        for i in range(queries):
            for j in range(keys):
                dense[b, 0, i, j] = rule(b, i, j)
    return dense


def causal(batch: int, queries: int, keys: int, align: Any = "top_left") -> Array:
    """Let query i see key j if j <= i + a."""
    start = resolve_align(align, batch, queries, keys)
    return _fill(batch, queries, keys, lambda b, i, j: j <= i + start[b])


def window(
    batch: int,
    queries: int,
    keys: int,
    left: int | None,
    right: int | None,
    align: Any = "top_left",
) -> Array:
    """Return i + a - left <= j <= i + a + right; None means no limit."""
    start = resolve_align(align, batch, queries, keys)

    def rule(b: int, i: int, j: int) -> bool:
        position = i + start[b]
        if left is not None and j < position - left:
            return False
        return right is None or j <= position + right

    return _fill(batch, queries, keys, rule)


def dilated(batch: int, queries: int, keys: int, step: int, align: Any = "top_left") -> Array:
    """Let query i see key j if step divides i + a - j."""
    start = resolve_align(align, batch, queries, keys)
    return _fill(batch, queries, keys, lambda b, i, j: (i + start[b] - j) % step == 0)


def lengths(
    batch: int, queries: int, keys: int, key_lengths: Any, query_lengths: Any = None
) -> Array:
    """Return j < key_lengths[b], and i < query_lengths[b] if there are query lengths."""

    def rule(b: int, i: int, j: int) -> bool:
        if query_lengths is not None and i >= query_lengths[b]:
            return False
        return bool(j < key_lengths[b])

    return _fill(batch, queries, keys, rule)


def segments(batch: int, queries: int, keys: int, query_ids: Any, key_ids: Any = None) -> Array:
    """Let query i see key j where their segment numbers are equal."""
    other = query_ids if key_ids is None else key_ids
    return _fill(batch, queries, keys, lambda b, i, j: bool(query_ids[b][i] == other[b][j]))


def prefix(batch: int, queries: int, keys: int, n: Any, align: Any = "top_left") -> Array:
    """Let query i see key j if j < n (everyone sees the prefix) or j <= i + a (causal after it)."""
    start = resolve_align(align, batch, queries, keys)
    size = np.broadcast_to(np.asarray(n), (batch,))
    return _fill(batch, queries, keys, lambda b, i, j: bool(j < size[b] or j <= i + start[b]))
