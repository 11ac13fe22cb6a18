"""Makes NaN and infinity reach exactly the rows that may see them.

A weight of 0 does not hide a NaN in a product (0 * NaN = NaN). So under a mask, sums run over finite substitutes, and
afterwards NaN is written into each row that sees a nonfinite key or value, or holds a nonfinite query or incoming
gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from heed.ops import mask_rules
from heed.ops.mask import Mask
from heed.ops.sizes import Span, sizes, slice_axis


def zero_nonfinite(x: tf.Tensor) -> tf.Tensor:
    """`x` with 0 in place of every nonfinite number."""
    return tf.where(tf.math.is_finite(x), x, tf.zeros((), x.dtype))


def has_nonfinite(x: tf.Tensor) -> tf.Tensor:
    """1.0 for each vector along the last axis with a nonfinite number, else 0.0; that axis stays with length 1."""
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
        # The mask has no heads: one product serves them all.
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
    """The tensors that get gradients, whole or as a block; under a mask blocks are guarded against nonfinite numbers.

    Attributes:
        query: (B, K, G, T, H); key: (B, K, S, H); value: (B, K, S, V), None where only weights are wanted. All of one
            dtype, float32 or float64; finite substitutes in a guarded block.
        bias: of the scores, (B or 1, N or 1, T or 1, S or 1), or None. Cut as soon as both queries and keys are.
        score_vector: (U,) of additive attention, or None.
        queries, keys: the positions of a block; None for all.
        nonfinite_query: (B, K, G, T, 1) zeros and ones, or None if not guarded.
        nonfinite_key: (B, K, S, 1), ones where the key or its value is nonfinite; or None.
        value_and_one: (B, K, S, V + 1), see `with_one`; or None.
    """

    query: tf.Tensor
    key: tf.Tensor
    value: tf.Tensor
    bias: tf.Tensor | None = None
    score_vector: tf.Tensor | None = None
    queries: Any = None
    keys: Any = None
    nonfinite_query: tf.Tensor | None = None
    nonfinite_key: tf.Tensor | None = None
    value_and_one: tf.Tensor | None = None

    @property
    def tensors(self) -> dict[str, tf.Tensor]:
        """The tensors that get gradients, by name."""
        return self._named("query", "key", "value", "bias", "score_vector")

    @property
    def score_inputs(self) -> dict[str, tf.Tensor]:
        """The tensors from which the scores are computed, by name."""
        return self._named("query", "key", "score_vector")

    def with_tensors(self, tensors: Sequence[tf.Tensor]) -> Operands:
        """The same with other tensors, in the order of `tensors`."""
        return dataclasses.replace(self, **dict(zip(self.tensors, tensors, strict=True)))

    def guard(self, mask: Mask | None) -> Operands:
        """The same with marks of nonfinite vectors, if there is a mask, which may hide them."""
        if mask is None:
            return self
        nonfinite_key = tf.maximum(has_nonfinite(self.key), has_nonfinite(self.value))
        return dataclasses.replace(
            self, nonfinite_query=has_nonfinite(self.query), nonfinite_key=nonfinite_key
        )

    @property
    def guarded(self) -> bool:
        """Whether blocks hold finite substitutes."""
        return self.nonfinite_query is not None

    def with_one(self) -> Operands:
        """The same with a 1 appended to each value: a product adds the last number of a row to each sum."""
        one = tf.ones(tf.stack([*sizes(self.value)[:3], 1]), self.value.dtype)
        return dataclasses.replace(self, value_and_one=tf.concat([self.value, one], -1))

    def finite(self, *names: str) -> Operands:
        """The same with finite substitutes for the tensors of these names, if guarded."""
        if not self.guarded:
            return self
        safe = {name: zero_nonfinite(x) for name, x in self._named(*names).items()}
        return dataclasses.replace(self, **safe)

    def cut_queries(self, queries: Span) -> Operands:
        """A block of queries, with all the keys."""
        block = {"query": slice_axis(self.query, 3, *queries)}
        if self.guarded:
            block["nonfinite_query"] = slice_axis(self.nonfinite_query, 3, *queries)
        cut = dataclasses.replace(self, **block, queries=queries)
        return cut.finite("query")._with_bias()

    def cut_keys(self, keys: Span) -> Operands:
        """A block of keys and their values, with all the queries."""
        whole = self._named("key", "value", "value_and_one", "nonfinite_key")
        block = {name: slice_axis(x, 2, *keys) for name, x in whole.items()}
        cut = dataclasses.replace(self, **block, keys=keys)
        return cut.finite("key", "value", "value_and_one")._with_bias()

    def _with_bias(self) -> Operands:
        if self.bias is None or self.queries is None or self.keys is None:
            return self
        return dataclasses.replace(self, bias=mask_rules.cut(self.bias, self.queries, self.keys))

    def _named(self, *names: str) -> dict[str, tf.Tensor]:
        return {name: x for name in names if (x := getattr(self, name)) is not None}

    def nonfinite_rows(self, visible: tf.Tensor | None) -> tf.Tensor | None:
        """Rows that hold or see a nonfinite vector: booleans that broadcast to (B, K, G, t, 1), or None."""
        if self.nonfinite_query is None or visible is None:
            return None
        return tf.logical_or(self.nonfinite_query > 0, sees(visible, self.nonfinite_key))
