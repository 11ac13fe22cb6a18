"""The key/value cache: projected keys and values of the positions seen so far.

A cache is a plain dictionary of tensors, {"key": (B, L, K, H), "value": (B, L, K, V)} (without K for a layer with one
head): `tf.while_loop`, `keras.tree` and saved signatures take it like any other state. Positions from the write index
on hold zeros, which the reader's causal mask hides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import ops

from heed.layers.masks import Spread
from heed.layers.shapes import Shape, agree
from heed.number_checks import check_integer
from heed.ops.checks import cache_slot
from heed.ops.dispatch import select_fused_ops

Cache = dict[str, Any]


def make(
    batch_size: Any, length: int, key: tuple[int, int], value: tuple[int, int], dtype: str
) -> Cache:
    """Return a cache of zeros for `length` positions; `key` is (K, H), `value` is (K, V)."""
    check_integer("length", length, least=1)
    return {
        "key": ops.zeros((batch_size, length, *key), dtype=dtype),
        "value": ops.zeros((batch_size, length, *value), dtype=dtype),
    }


def check(cache: Any, batch_size: Any, key: Shape, value: Shape) -> None:
    """Check that `cache` has these features: (K, H) and (K, V), or (D,) and (V,) for a layer with one head."""
    if not isinstance(cache, Mapping) or set(cache) != {"key", "value"}:
        received = sorted(cache) if isinstance(cache, Mapping) else cache
        raise ValueError(
            '`cache` must be a dictionary with the entries "key" and "value", as `make_cache` and '
            f"`project_cache` return it. Received: {received!r}"
        )
    shapes: dict[str, Shape] = {name: tuple(x.shape) for name, x in cache.items()}
    length = shapes["key"][1] if len(shapes["key"]) == 2 + len(key) else None
    for name, features in (("key", key), ("value", value)):
        expected = (batch_size, length, *features)
        if not agree(shapes[name], expected):
            raise ValueError(
                f'`cache["{name}"]` must have the shape {expected}: as many batch items as '
                "`query`, as many positions in keys as in values, and the features of the layer. "
                f'Received: cache["{name}"].shape={shapes[name]}'
            )


def write(cache: Cache, key: Any, value: Any, cache_index: Any) -> Cache:
    """Write new keys and values (B, T, K, .) into a cache from `cache_index` on, where they must fit."""
    index = cache_slot(cache_index, ops.shape(key)[1], ops.shape(cache["key"])[1])
    start = ops.stack([0, index, 0, 0])

    def written(old: Any, new: Any) -> Any:
        new = ops.cast(new, old.dtype)
        # In place if nothing else holds the cache, so a loop over tokens copies only the new ones.
        result = select_fused_ops().write(old, new, ops.cast(index, "int32"))
        return ops.slice_update(old, start, new) if result is None else result

    return {"key": written(cache["key"], key), "value": written(cache["value"], value)}


def spread(cache: Cache, new: Any, cache_index: Any) -> Spread:
    """Return a function that extends a mask of the new positions (B, T) to the cached ones (B, L), where it is True.

    It leaves a mask (B, L) as it is.
    """
    room = cache["key"].shape[1]

    def over_cache(name: str, mask: Any) -> Any:
        if mask.shape[1] == room:
            return mask
        if not agree(tuple(mask.shape), tuple(new.shape)[:2]):
            raise ValueError(
                f"`{name}` must hold one value per cached position, (B, L), or one per new position, "
                f"(B, T). Received: {name}.shape={tuple(mask.shape)}, length of the cache={room}, "
                f"new positions={new.shape[1]}"
            )
        whole = ops.ones(ops.shape(cache["key"])[:2], dtype="bool")
        return ops.slice_update(whole, ops.stack([0, ops.cast(cache_index, "int32")]), mask)

    return over_cache
