"""The arithmetic of one block of the score matrix.

Shapes inside the portable implementation, with G = N / K query heads for each key/value head:
query (B, K, G, t, H), key (B, K, s, H), value (B, K, s, V), scores (B, K, G, t, s), all in the compute dtype.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import tensorflow as tf

from heed.ops.backends.tensorflow.portable import dropout
from heed.ops.backends.tensorflow.portable.finite import Operands
from heed.ops.mask import Mask
from heed.ops.mask_rules import as_column, offset
from heed.ops.sizes import Size, size, sizes

# A bias of this or less hides its key as -inf does; above, it is an ordinary number.
HIDING_BIAS = -1e30

Score = Callable[..., tf.Tensor]


@dataclasses.dataclass(frozen=True)
class BlockAttention:
    """An attention without its operands, as needed to compute one block.

    Attributes:
        score: computes the scores of a block from `Operands.score_inputs`; differentiable by TensorFlow.
        mask: which pairs count, or None for all.
        slopes: (N,) of ALiBi, or None.
        rate: dropout, 0 <= rate < 1.
        seed: (2,) uint32 of the dropout, or None.
        heads: (K, G).
        lengths: (T, S).
        scores_per_pair: numbers in memory for one (query, key) pair: B * N, times U for additive attention.
    """

    score: Score
    mask: Mask | None
    slopes: tf.Tensor | None
    rate: float
    seed: tf.Tensor | None
    heads: tuple[int, int]
    lengths: tuple[Size, Size]
    scores_per_pair: int

    def visible(self, block: Operands, fresh_keys: tf.Tensor | None = None) -> tf.Tensor | None:
        """Booleans that broadcast to (B, K, G, t, s), or None for "everything".

        `fresh_keys` (s,) is False for keys that the previous block has handled.
        """
        seen, keys = None, block.keys
        if self.mask is not None:
            seen = self.mask.visible(block.queries, keys, *self.lengths)
        if fresh_keys is not None:
            fresh = fresh_keys[None, None, None, :]
            seen = fresh if seen is None else tf.logical_and(seen, fresh)
        if seen is None:
            return None
        if not isinstance(keys.length, int) or seen.shape[3] != keys.length:
            seen = tf.logical_and(seen, tf.ones((1, 1, 1, keys.length), tf.bool))
        return self._split_heads(seen)

    def addend(self, block: Operands, visible: tf.Tensor | None) -> tf.Tensor | None:
        """The sum of bias and ALiBi, -inf where hidden; broadcasts to (B, K, G, t, s). None for 0."""
        hidden = tf.constant(float("-inf"), block.query.dtype)
        total = None
        if block.bias is not None:
            total = self._split_heads(tf.where(block.bias <= HIDING_BIAS, hidden, block.bias))
        if self.slopes is not None:
            slopes = tf.reshape(self.slopes, (1, -1, 1, 1))
            alibi = self._split_heads(-slopes * self.distance(block))
            total = alibi if total is None else total + alibi
        if visible is not None:
            zero = tf.zeros((), hidden.dtype)
            total = tf.where(visible, zero if total is None else total, hidden)
        return total

    def logits(self, block: Operands, addend: tf.Tensor | None) -> tf.Tensor:
        """The scores of a block plus the addend, (B, K, G, t, s)."""
        scores = self.score(**block.score_inputs)
        return scores if addend is None else scores + addend

    def distance(self, block: Operands) -> tf.Tensor:
        """|i + a - j| of query i and key j, where `a` is the mask's alignment: (t, s) or (B, 1, t, s)."""
        align = 0 if self.mask is None else self.mask.alignment
        here = block.queries.positions[:, None] + as_column(offset(align, *self.lengths))
        return tf.cast(tf.abs(here - block.keys.positions), block.query.dtype)

    def keep_factor(self, block: Operands) -> tf.Tensor | None:
        """The factors of the weights, 0 or 1 / (1 - rate); None without dropout."""
        if not self.rate:
            return None
        batch, heads, dtype = size(block.query, 0), math.prod(self.heads), block.query.dtype
        keep = dropout.keep_mask(self.rate, self.seed, batch, heads, block.queries, block.keys)
        return self._split_heads(
            tf.where(keep, tf.constant(1 / (1 - self.rate), dtype), tf.zeros((), dtype))
        )

    def _split_heads(self, x: tf.Tensor) -> tf.Tensor:
        """(B or 1, N or 1, t, s) to (B or 1, K or 1, G or 1, t, s)."""
        if x.shape[1] == 1:
            return x[:, :, None]
        kv_heads, queries_per_kv = self.heads
        batch, heads, queries, keys = sizes(x)
        if not isinstance(heads, int):
            x = tf.broadcast_to(x, tf.stack([batch, kv_heads * queries_per_kv, queries, keys]))
        return tf.reshape(x, tf.stack([batch, kv_heads, queries_per_kv, queries, keys]))

    def join_heads(self, x: tf.Tensor) -> tf.Tensor:
        """(B, K, G, t, s) to (B, N, t, s)."""
        batch, _, _, queries, keys = sizes(x)
        return tf.reshape(x, tf.stack([batch, self.heads[0] * self.heads[1], queries, keys]))


def seen_rows(addend: tf.Tensor | None) -> tf.Tensor | None:
    """Which rows see any key of a block: booleans that broadcast to (B, K, G, t, 1), or None for all.

    `addend` is that of the block, see `BlockAttention`.
    """
    if addend is None:
        return None
    return tf.not_equal(tf.reduce_max(addend, -1, keepdims=True), float("-inf"))


def finite_rows(addend: tf.Tensor | None, seen: tf.Tensor | None) -> tf.Tensor | None:
    """The addend with 0 in rows that see nothing: the softmax of only -inf is NaN."""
    if addend is None:
        return None
    return tf.where(seen, addend, tf.zeros((), addend.dtype))


def fold(x: tf.Tensor) -> tf.Tensor:
    """(B, K, G, t, x) to (B, K, G * t, x): one matrix product serves all query heads of a key head."""
    if x.shape[2] == 1:
        return tf.squeeze(x, 2)
    batch, heads, queries_per_kv, rows, width = sizes(x)
    return tf.reshape(x, tf.stack([batch, heads, queries_per_kv * rows, width]))


def unfold(x: tf.Tensor, queries_per_kv: int) -> tf.Tensor:
    """The inverse of `fold`."""
    if queries_per_kv == 1:
        return tf.expand_dims(x, 2)  # the gradient of x[:, :, None] would copy
    batch, heads, rows, width = sizes(x)
    return tf.reshape(x, tf.stack([batch, heads, queries_per_kv, rows // queries_per_kv, width]))


def apply_weights(weights: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Weights (B, K, G, t, s) times value (B, K, s, V) to (B, K, G, t, V)."""
    return unfold(tf.matmul(fold(weights), value), weights.shape[2])


def apply_transposed_weights(weights: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """The transposed product: weights (B, K, G, t, s), rows (B, K, G, t, V) to (B, K, s, V)."""
    return tf.matmul(fold(weights), fold(rows), transpose_a=True)
