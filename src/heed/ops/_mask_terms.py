"""The rules a `Mask` is made of. Each says which pairs it allows and outside which keys it allows none."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from heed.ops._sizes import Size, Span, maximum, slice_axis

# Bounds for "no limit" that survive the addition of any position.
FAR = 2**30


def comparable(field: Any) -> Any:
    return field if field is None or isinstance(field, (int, str)) else id(field)


def offset(align: Any, query_length: Size, key_length: Size) -> Any:
    """`a` of query position i + a: an int, a scalar tensor, or a tensor (B,)."""
    if isinstance(align, str):
        return 0 if align == "top_left" else key_length - query_length
    return align


def as_column(x: Any) -> Any:
    """(B,) to (B, 1, 1, 1); scalars as they are."""
    return tf.reshape(x, (-1, 1, 1, 1)) if isinstance(x, tf.Tensor) and x.shape.rank == 1 else x


def _bounds(x: Any) -> tuple[Any, Any]:
    """Smallest and largest value of an int or tensor."""
    if isinstance(x, tf.Tensor) and x.shape.rank != 0:
        return tf.reduce_min(x), tf.reduce_max(x)
    return x, x


def _grid(queries: Span, keys: Span) -> tuple[tf.Tensor, tf.Tensor]:
    return queries.positions[None, None, :, None], keys.positions[None, None, None, :]


class Term:
    """One rule of a mask.

    `axes` names the fields that hold one entry a batch entry, with the further axes of (B, N, T, S) that they have.
    """

    axes: ClassVar[dict[str, tuple[int, ...]]] = {}

    @property
    def has_static_range(self) -> bool:
        return False

    def fields(self) -> list[Any]:
        return [getattr(self, f.name) for f in dataclasses.fields(self)]  # type: ignore[arg-type]

    def to_config(self) -> dict[str, Any]:
        """The name of the rule and its fields, tensors as nested lists."""
        names = [f.name for f in dataclasses.fields(self)]  # type: ignore[arg-type]
        values = {name: _plain(getattr(self, name)) for name in names}
        return {"kind": type(self).__name__, **values}

    def visible(self, queries: Span, keys: Span, query_length: Size, key_length: Size) -> tf.Tensor:
        """Booleans of rank 4 that broadcast to (B, N, t, s)."""
        raise NotImplementedError

    def key_range(self, queries: Span, query_length: Size, key_length: Size) -> tuple[Any, Any]:
        """(lo, hi): none of these queries sees a key before lo or from hi on."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, eq=False)
class Window(Term):
    axes: ClassVar = {"align": ()}

    left: int | None
    right: int | None
    align: Any

    @property
    def has_static_range(self) -> bool:
        return isinstance(self.align, (int, str))

    def visible(self, queries: Span, keys: Span, query_length: Size, key_length: Size) -> tf.Tensor:
        i, j = _grid(queries, keys)
        distance = j - (i + as_column(offset(self.align, query_length, key_length)))
        allowed = tf.ones_like(distance, tf.bool)
        if self.left is not None:
            allowed = distance >= -self.left
        if self.right is not None:
            after = distance <= self.right
            allowed = after if self.left is None else tf.logical_and(allowed, after)
        return allowed

    def key_range(self, queries: Span, query_length: Size, key_length: Size) -> tuple[Any, Any]:
        least, most = _bounds(offset(self.align, query_length, key_length))
        lo = -FAR if self.left is None else queries.begin + least - self.left
        hi = FAR if self.right is None else queries.end + most + self.right
        return lo, hi


@dataclasses.dataclass(frozen=True, eq=False)
class Prefix(Term):
    axes: ClassVar = {"n": (), "align": ()}

    n: Any
    align: Any

    @property
    def has_static_range(self) -> bool:
        return isinstance(self.n, (int, np.integer)) and isinstance(self.align, (int, str))

    def visible(self, queries: Span, keys: Span, query_length: Size, key_length: Size) -> tf.Tensor:
        i, j = _grid(queries, keys)
        causal = j <= i + as_column(offset(self.align, query_length, key_length))
        return tf.logical_or(j < as_column(self.n), causal)

    def key_range(self, queries: Span, query_length: Size, key_length: Size) -> tuple[Any, Any]:
        _, most = _bounds(offset(self.align, query_length, key_length))
        return 0, maximum(_bounds(self.n)[1], queries.end + most)


@dataclasses.dataclass(frozen=True, eq=False)
class Lengths(Term):
    axes: ClassVar = {"key_lengths": (), "query_lengths": ()}

    key_lengths: tf.Tensor
    query_lengths: tf.Tensor | None

    def visible(self, queries: Span, keys: Span, query_length: Size, key_length: Size) -> tf.Tensor:
        i, j = _grid(queries, keys)
        allowed = j < as_column(self.key_lengths)
        if self.query_lengths is not None:
            allowed = tf.logical_and(allowed, i < as_column(self.query_lengths))
        return allowed

    def key_range(self, queries: Span, query_length: Size, key_length: Size) -> tuple[Any, Any]:
        # Not below 0, where there is no batch entry at all either.
        longest = tf.maximum(0, tf.reduce_max(self.key_lengths))
        if self.query_lengths is None:
            return 0, longest
        any_query = queries.begin < tf.maximum(0, tf.reduce_max(self.query_lengths))
        return 0, tf.where(any_query, longest, 0)


@dataclasses.dataclass(frozen=True, eq=False)
class Segments(Term):
    axes: ClassVar = {"query_ids": (2,), "key_ids": (3,)}

    query_ids: tf.Tensor
    key_ids: tf.Tensor

    def visible(self, queries: Span, keys: Span, query_length: Size, key_length: Size) -> tf.Tensor:
        query_ids = slice_axis(self.query_ids, 1, *queries)
        key_ids = slice_axis(self.key_ids, 1, *keys)
        return tf.equal(query_ids[:, None, :, None], key_ids[:, None, None, :])

    def key_range(self, queries: Span, query_length: Size, key_length: Size) -> tuple[Any, Any]:
        # From the first to the last key whose number lies between the smallest and largest of these queries.
        query_ids = slice_axis(self.query_ids, 1, *queries)
        least = tf.reduce_min(query_ids, axis=1, keepdims=True)
        most = tf.reduce_max(query_ids, axis=1, keepdims=True)
        near = tf.logical_and(self.key_ids >= least, self.key_ids <= most)
        position = tf.range(tf.shape(self.key_ids)[1])
        lo = tf.reduce_min(tf.where(near, position, FAR))
        hi = tf.reduce_max(tf.where(near, position + 1, 0))
        return lo, hi


@dataclasses.dataclass(frozen=True, eq=False)
class Dense(Term):
    array: tf.Tensor

    @property
    def has_static_range(self) -> bool:
        return True

    def visible(self, queries: Span, keys: Span, query_length: Size, key_length: Size) -> tf.Tensor:
        return cut(self.array, queries, keys)

    def key_range(self, queries: Span, query_length: Size, key_length: Size) -> tuple[Any, Any]:
        return 0, key_length


def cut(array: tf.Tensor | None, queries: Span, keys: Span) -> tf.Tensor | None:
    """A block of something that broadcasts to (B, N, T, S), as rank 4. Axes of length 1 stay: they broadcast."""
    if array is None:
        return None
    missing = 4 - array.shape.rank
    array = array[(None,) * missing + (...,)] if missing else array
    for axis, span in ((2, queries), (3, keys)):
        length = array.shape[axis]
        if length is None:
            length = tf.shape(array)[axis]
            begin = tf.where(length == 1, 0, span.begin)
            array = slice_axis(array, axis, begin, tf.minimum(length, span.length))
        elif length != 1:
            array = slice_axis(array, axis, *span)
    return array


def _plain(field: Any) -> Any:
    if not isinstance(field, tf.Tensor):
        return int(field) if isinstance(field, np.integer) else field
    if not hasattr(field, "numpy"):
        raise TypeError(
            f"A mask of tensors that have no values yet cannot be saved. Received: {field!r}"
        )
    return {"dtype": field.dtype.name, "values": field.numpy().tolist()}


KINDS: dict[str, type[Term]] = {
    kind.__name__: kind for kind in (Window, Prefix, Lengths, Segments, Dense)
}


def from_config(config: dict[str, Any]) -> Term:
    """The rule that `to_config` described."""
    fields = {
        name: tf.constant(x["values"], x["dtype"]) if isinstance(x, dict) else x
        for name, x in config.items()
        if name != "kind"
    }
    return KINDS[config["kind"]](**fields)
