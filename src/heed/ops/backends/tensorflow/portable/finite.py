"""Not-a-number and infinity reach exactly the rows that may see them.

A weight of 0 does not silence a NaN in a product (0 * NaN = NaN). So where a mask hides something, sums run over
finite stand-ins, and afterwards NaN is written into each row that sees a key or value (or holds a query or an incoming
gradient) that was not finite.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from heed.ops.sizes import Span, sizes, slice_axis


def zero_nonfinite(x: tf.Tensor) -> tf.Tensor:
    """`x` with 0 in place of every number that is not finite."""
    return tf.where(tf.math.is_finite(x), x, tf.zeros((), x.dtype))


def has_nonfinite(x: tf.Tensor) -> tf.Tensor:
    """1.0 for each vector along the last axis, kept with length 1, that holds a number that is not finite, else 0.0."""
    whole = tf.reduce_all(tf.math.is_finite(x), axis=-1, keepdims=True)
    return tf.cast(tf.logical_not(whole), x.dtype)


def sees(visible: tf.Tensor, nonfinite_keys: tf.Tensor) -> tf.Tensor:
    """Which rows see a nonfinite key: (B, K, G or 1, t or 1, 1) booleans.

    Args:
        visible: booleans that broadcast to (B, K, G, t, s).
        nonfinite_keys: (B, K, s, 1) zeros and ones.
    """
    seen = tf.cast(visible, nonfinite_keys.dtype)
    if visible.shape[1] == 1 and visible.shape[2] == 1:
        # No heads in the mask: one product serves them all.
        count = tf.matmul(seen[:, 0, 0], tf.squeeze(nonfinite_keys, 3), transpose_b=True)
        return tf.transpose(count, (0, 2, 1))[:, :, None, :, None] > 0
    return tf.matmul(seen, nonfinite_keys[:, :, None]) > 0


def seen_by(visible: tf.Tensor, nonfinite_rows: tf.Tensor) -> tf.Tensor:
    """Which keys are seen by a nonfinite row: (B, K, s, 1) booleans.

    Args:
        visible: booleans that broadcast to (B, K, G, t, s).
        nonfinite_rows: (B, K, G, t, 1) booleans.
    """
    if visible.shape[3] == 1:
        nonfinite_rows = tf.reduce_any(nonfinite_rows, axis=3, keepdims=True)
    if visible.shape[1] == 1 and visible.shape[2] == 1:
        rows = tf.cast(tf.reduce_any(nonfinite_rows, axis=2)[..., 0], tf.float32)
        count = tf.matmul(rows, tf.cast(visible[:, 0, 0], tf.float32))
        return count[..., None] > 0
    rows = tf.cast(nonfinite_rows, tf.float32)
    count = tf.matmul(tf.cast(visible, tf.float32), rows, transpose_a=True)
    return tf.reduce_any(count > 0, axis=2)


def nan_where(condition: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """`x` with NaN where the condition holds."""
    return tf.where(condition, tf.constant(float("nan"), x.dtype), x)


@dataclasses.dataclass(frozen=True)
class Operands:
    """Query, key and value, to be cut into blocks that are safe where a mask hides something.

    Attributes:
        query, key, value: as given; once they are cut, finite stand-ins if guarded.
        nonfinite_query: (B, K, G, T, 1) zeros and ones, or None if not guarded.
        nonfinite_key: (B, K, S, 1), the key or its value is not finite; or None.
        value_and_one: (B, K, S, V + 1), see `with_one`; or None.
    """

    query: tf.Tensor
    key: tf.Tensor
    value: tf.Tensor
    nonfinite_query: tf.Tensor | None = None
    nonfinite_key: tf.Tensor | None = None
    value_and_one: tf.Tensor | None = None

    @classmethod
    def of(cls, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, *, guarded: bool) -> Operands:
        """Looks for what is not finite if `guarded`."""
        if not guarded:
            return cls(query, key, value)
        nonfinite_key = tf.maximum(has_nonfinite(key), has_nonfinite(value))
        return cls(query, key, value, has_nonfinite(query), nonfinite_key)

    @property
    def guarded(self) -> bool:
        """Whether a mask hides something, so that blocks hold stand-ins."""
        return self.nonfinite_query is not None

    def with_one(self) -> Operands:
        """With a 1 behind each value: a product of rows with a number behind adds that number to every sum."""
        one = tf.ones(tf.stack([*sizes(self.value)[:3], 1]), self.value.dtype)
        return dataclasses.replace(self, value_and_one=tf.concat([self.value, one], -1))

    def cut_queries(self, queries: Span) -> Operands:
        """A block of queries, with all the keys."""
        query = slice_axis(self.query, 3, *queries)
        if not self.guarded:
            return dataclasses.replace(self, query=query)
        nonfinite = slice_axis(self.nonfinite_query, 3, *queries)
        return dataclasses.replace(self, query=zero_nonfinite(query), nonfinite_query=nonfinite)

    def cut_keys(self, keys: Span) -> Operands:
        """A block of keys and their values, with all the queries."""
        safe = zero_nonfinite if self.guarded else tf.identity
        names = ("key", "value", "value_and_one")
        whole = {name: x for name in names if (x := getattr(self, name)) is not None}
        block = {name: safe(slice_axis(x, 2, *keys)) for name, x in whole.items()}
        if self.guarded:
            block["nonfinite_key"] = slice_axis(self.nonfinite_key, 2, *keys)
        return dataclasses.replace(self, **block)

    def nonfinite_rows(self, visible: tf.Tensor | None) -> tf.Tensor | None:
        """Rows that hold or see what is not finite: booleans that broadcast to (B, K, G, t, 1), or None."""
        if self.nonfinite_query is None or visible is None:
            return None
        return tf.logical_or(self.nonfinite_query > 0, sees(visible, self.nonfinite_key))
