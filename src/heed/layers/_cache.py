"""The key/value cache: projected keys and values of the positions seen so far.

A cache is a plain dictionary {"key": (B, L, K, H), "value": (B, L, K, V)} of tensors, so that it
passes through `tf.while_loop`, `keras.tree` and saved signatures like any other state. Positions
from the write index on hold zeros; the causal mask of the reader hides them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import ops

from heed.layers._checks import Shape, agree, positive_int

Cache = dict[str, Any]


def make(
    batch_size: Any, length: int, key: tuple[int, int], value: tuple[int, int], dtype: str
) -> Cache:
    """A cache of zeros for `length` positions; `key` is (K, H), `value` is (K, V)."""
    positive_int("length", length)
    return {
        "key": ops.zeros((batch_size, length, *key), dtype=dtype),
        "value": ops.zeros((batch_size, length, *value), dtype=dtype),
    }


def check(cache: Any, batch_size: Any, key: tuple[int, int], value: tuple[int, int]) -> None:
    """Checks that `cache` is one of these shapes.

    Raises:
        ValueError: if a part is missing or has another shape.
    """
    if not isinstance(cache, Mapping) or set(cache) != {"key", "value"}:
        received = sorted(cache) if isinstance(cache, Mapping) else cache
        raise ValueError(
            '`cache` must be a dictionary with the entries "key" and "value", as `make_cache` and '
            f"`project_cache` return it. Received: {received!r}"
        )
    shapes: dict[str, Shape] = {name: tuple(x.shape) for name, x in cache.items()}
    length = shapes["key"][1] if len(shapes["key"]) == 4 else None
    for name, heads in (("key", key), ("value", value)):
        expected = (batch_size, length, *heads)
        if not agree(shapes[name], expected):
            raise ValueError(
                f'`cache["{name}"]` must have the shape {expected}: as many batch items as '
                "`query`, as many positions in keys as in values, and the heads of the layer. "
                f'Received: cache["{name}"].shape={shapes[name]}'
            )


def check_room(cache: Cache, new: Any, cache_index: Any) -> None:
    """Checks, as far as sizes are known, that the new positions fit into the cache.

    Raises:
        ValueError: if they do not.
    """
    room, count = cache["key"].shape[1], new.shape[1]
    start = cache_index if isinstance(cache_index, int) else 0
    if start < 0 or (room is not None and count is not None and start + count > room):
        raise ValueError(
            "`cache_index` must leave room in the cache for all new positions. Received: "
            f"cache_index={cache_index}, new positions={count}, length of the cache={room}"
        )


def write(cache: Cache, key: Any, value: Any, cache_index: Any) -> Cache:
    """A cache in which the new keys and values (B, T, K, .) stand from `cache_index` on."""
    check_room(cache, key, cache_index)
    start = ops.stack([0, ops.cast(cache_index, "int32"), 0, 0])
    return {
        name: ops.slice_update(cache[name], start, ops.cast(new, cache[name].dtype))
        for name, new in (("key", key), ("value", value))
    }


def mask_over_cache(mask: Any, cache: Cache, new: Any, cache_index: Any, name: str) -> Any:
    """A mask of the cached positions (B, L), from one of them or one of the new ones (B, T).

    A mask of the new positions says nothing about the others: they count as True.
    """
    if mask is None:
        return None
    room = cache["key"].shape[1]
    if mask.shape[1] == room:
        return mask
    if not agree(tuple(mask.shape), tuple(new.shape)[:2]):
        raise ValueError(
            f"`{name}` must hold one value per cached position, (B, L), or one per new position, "
            f"(B, T). Received: {name}.shape={tuple(mask.shape)}, length of the cache={room}, "
            f"new positions={new.shape[1]}"
        )
    whole = ops.ones(ops.shape(cache["key"])[:2], dtype="bool")
    start = ops.stack([0, ops.cast(cache_index, "int32")])
    return ops.slice_update(whole, start, mask)
