"""The arithmetic of one block of the score matrix, forward and backward.

Shapes inside the portable implementation, with G = N / K query heads for each key/value head:
query (B, K, G, t, H), key (B, K, s, H), value (B, K, s, V), scores (B, K, G, t, s), all in the compute dtype.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from heed.ops.backends.tensorflow.portable import dropout
from heed.ops.backends.tensorflow.portable.finite import Operands
from heed.ops.mask import Mask
from heed.ops.mask_rules import as_column, offset
from heed.ops.sizes import Size, Span, sizes

# A bias of this or less hides its key as -inf does; above, it is an ordinary number.
HIDING_BIAS = -1e30

Score = Callable[..., tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Attention:
    """One attention apart from its tensors: how to score, what to add, what to hide, what to drop.

    Attributes:
        score: (query block, key block, *parameters) to scores; differentiable TensorFlow code.
        mask: which pairs count, or None for all.
        slopes: (N,) of ALiBi, or None.
        rate: dropout, 0 <= rate < 1.
        seed: (2,) uint32 of the dropout, or None.
        heads: (K, G).
        lengths: (T, S).
    """

    score: Score
    mask: Mask | None
    slopes: tf.Tensor | None
    rate: float
    seed: tf.Tensor | None
    heads: tuple[int, int]
    lengths: tuple[Size, Size]

    def visible(
        self, queries: Span, keys: Span, fresh_keys: tf.Tensor | None = None
    ) -> tf.Tensor | None:
        """Booleans that broadcast to (B, K, G, t, s), or None for "everything".

        `fresh_keys` (s,) is False for keys that the block before has dealt with already.
        """
        block = None if self.mask is None else self.mask.visible(queries, keys, *self.lengths)
        if fresh_keys is not None:
            fresh = fresh_keys[None, None, None, :]
            block = fresh if block is None else tf.logical_and(block, fresh)
        if block is None:
            return None
        if not isinstance(keys.length, int) or block.shape[3] != keys.length:
            block = tf.logical_and(block, tf.ones((1, 1, 1, keys.length), tf.bool))
        return self._split_heads(block)

    def addend(
        self,
        queries: Span,
        keys: Span,
        bias: tf.Tensor | None,
        visible: tf.Tensor | None,
        dtype: tf.DType,
    ) -> tf.Tensor | None:
        """What is added to the scores, broadcasting to (B, K, G, t, s): bias, ALiBi, and -inf where hidden.

        `bias` is that of the block, see `cut`.
        """
        hidden = tf.constant(float("-inf"), dtype)
        total = None
        if bias is not None:
            total = self._split_heads(tf.where(bias <= HIDING_BIAS, hidden, bias))
        if self.slopes is not None:
            slopes = tf.reshape(self.slopes, (1, -1, 1, 1))
            alibi = self._split_heads(-slopes * self.distance(queries, keys, dtype))
            total = alibi if total is None else total + alibi
        if visible is not None:
            total = tf.where(visible, tf.zeros((), dtype) if total is None else total, hidden)
        return total

    def distance(self, queries: Span, keys: Span, dtype: tf.DType) -> tf.Tensor:
        """|i + a - j| of query i and key j, where `a` is the mask's alignment: (t, s) or (B, 1, t, s)."""
        align = 0 if self.mask is None else self.mask.alignment
        here = queries.positions[:, None] + as_column(offset(align, *self.lengths))
        return tf.cast(tf.abs(here - keys.positions), dtype)

    def keep_factor(
        self, batch: Size, queries: Span, keys: Span, dtype: tf.DType
    ) -> tf.Tensor | None:
        """What dropout multiplies the weights with: 0 or 1 / (1 - rate); None without dropout."""
        if not self.rate:
            return None
        kv_heads, queries_per_kv = self.heads
        keep = dropout.kept(self.rate, self.seed, batch, kv_heads * queries_per_kv, queries, keys)
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
    """Which rows see any key of a block: booleans that broadcast to (B, K, G, t, 1), or None for all of them.

    `addend` is that of the block, see `Attention`.
    """
    if addend is None:
        return None
    return tf.not_equal(tf.reduce_max(addend, -1, keepdims=True), float("-inf"))


def finite_rows(addend: tf.Tensor | None, seen: tf.Tensor | None) -> tf.Tensor | None:
    """The same addend with 0 in rows that see nothing: a softmax of -inf alone is not a number."""
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


def weigh(weights: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Weights (B, K, G, t, s) times value (B, K, s, V) to (B, K, G, t, V)."""
    return unfold(tf.matmul(fold(weights), value), weights.shape[2])


def weigh_back(weights: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """The transposed product: weights (B, K, G, t, s), rows (B, K, G, t, V) to (B, K, s, V)."""
    return tf.matmul(fold(weights), fold(rows), transpose_a=True)


@dataclasses.dataclass(frozen=True)
class BlockGradient:
    """What one block adds to the gradients."""

    query: tf.Tensor
    key: tf.Tensor
    value: tf.Tensor
    parameters: Sequence[tf.Tensor]
    scores: tf.Tensor


def block_gradient(
    attention: Attention,
    block: Operands,
    parameters: Sequence[tf.Tensor],
    addend: tf.Tensor | None,
    keep: tf.Tensor | None,
    output_gradient: tf.Tensor,
    delta: tf.Tensor,
    row_max: tf.Tensor | None,
) -> BlockGradient:
    """Backward through one block.

    Args:
        addend, keep: of this block, see `Attention`.
        output_gradient: (B, K, G, t, V).
        delta: (B, K, G, t, 1), the sum of output * output_gradient, less the gradient of lse.
        row_max: (B, K, G, t, 1) highest score of the whole rows, whose sum of exp(score - row_max) divides
            output_gradient and delta; None if the block holds the whole rows. exp(score - lse) would bring in the
            rounding of lse.
    """
    inputs = [block.query, block.key, *parameters]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        scores = attention.score(*inputs)
    logits = scores if addend is None else scores + addend
    weights = tf.nn.softmax(logits) if row_max is None else tf.exp(logits - row_max)
    dropped = weights if keep is None else weights * keep
    if keep is None:
        # The product subtracts delta: a pass over the whole block less.
        rows, value = tf.concat([output_gradient, -delta], -1), block.value_and_one
    else:
        rows, value = output_gradient, block.value
    weight_gradient = unfold(tf.matmul(fold(rows), value, transpose_b=True), attention.heads[1])
    if keep is not None:
        weight_gradient = weight_gradient * keep - delta
    score_gradient = weights * weight_gradient
    gradients = tape.gradient(scores, inputs, score_gradient, unconnected_gradients="zero")
    value_gradient = weigh_back(dropped, output_gradient)
    return BlockGradient(gradients[0], gradients[1], value_gradient, gradients[2:], score_gradient)
