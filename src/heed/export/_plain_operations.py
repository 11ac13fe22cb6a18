"""Replaces operations that few runtimes have with ones that all of them have, while a model is traced."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from heed.keras_modules import backend_module
from heed.patching import ContextPatch, activate


def plain_operations() -> AbstractContextManager[None]:
    """Trace `x[:, None]` as a slice and a new axis, and `ops.searchsorted` as a count, inside the block."""
    return activate(_patches())


@functools.cache
def _patches() -> list[ContextPatch]:
    return [
        ContextPatch(tf.Tensor, "__getitem__", _make_getitem),
        ContextPatch(backend_module("numpy"), "searchsorted", lambda _: _searchsorted),
    ]


def _make_getitem(original: Callable[..., Any]) -> Callable[..., Any]:
    def getitem(x: Any, index: Any, var: Any = None) -> Any:
        items = index if isinstance(index, (tuple, list)) else (index,)
        if all(one is not None for one in items) or x.shape.rank is None:
            return original(x, index, var)
        given = sum(one is not None and one is not Ellipsis for one in items)
        axes, axis = [], 0  # the new axes, in the result
        for one in items:
            if one is None:
                axes.append(axis)
            if one is Ellipsis:
                axis += x.shape.rank - given
            elif one is None or isinstance(one, slice):
                axis += 1
        cuts = tuple(one for one in items if one is not None)
        if not all(map(_is_whole, cuts)):
            x = original(x, cuts, var)
        for axis in axes:
            x = tf.expand_dims(x, axis)
        return x

    return getitem


def _is_whole(item: Any) -> bool:
    """Return whether an index keeps the whole axis."""
    if isinstance(item, slice):
        return item.start is item.stop is item.step is None
    return item is Ellipsis


def _searchsorted(sorted_sequence: Any, values: Any, side: str = "left") -> Any:
    """Return the number of entries of `sorted_sequence` (n,) before each value, int32."""
    values = tf.expand_dims(tf.convert_to_tensor(values), -1)
    before = sorted_sequence <= values if side == "right" else sorted_sequence < values
    return tf.reduce_sum(tf.cast(before, tf.int32), -1)
