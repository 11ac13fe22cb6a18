"""One block of attention in `keras.ops`, for backends that differentiate it themselves.

Shapes, with G = N / K query heads for each key/value head: query (B, K, G, t, H), key (B, K, s, H), value (B, K, s, V),
scores (B, K, G, t, s), all in the compute dtype. A block holds whole rows: all keys that its queries may see.

Nonfinite numbers: a weight of 0 does not hide a NaN in a product (0 * NaN = NaN). So under a mask, sums run over finite
substitutes, and NaN is then written into each row that sees a nonfinite key or value, or holds a nonfinite query.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from heed.ops import mask_rules
from heed.ops.mask import Mask
from heed.ops.mask_rules import as_column, offset
from heed.ops.scores import Score, fold, unfold
from heed.ops.sizes import Size, Span, size, sizes, slice_axis
from heed.ops.spec import AttentionSpec, Tensors

# A bias of this or less hides its key as -inf does; above, it is an ordinary number.
HIDING_BIAS = -1e30

# Booleans (B, N, t, s) from the rate, the seed, B, N and the spans of queries and keys: which weights dropout keeps.
KeepMask = Callable[[float, Any, Size, Size, Span, Span], Any]


class Operands(NamedTuple):
    """The tensors that get gradients, whole or cut to a block.

    Attributes:
        query: (B, K, G, T, H); key: (B, K, S, H); value: (B, K, S, V), None where only weights are wanted. All of one
            dtype, float32 or float64.
        bias: of the scores, (B or 1, N or 1, T or 1, S or 1), or None.
        score_vector: (U,) of additive attention, or None.
    """

    query: Any
    key: Any
    value: Any
    bias: Any = None
    score_vector: Any = None

    def cut(self, queries: Span, keys: Span) -> Operands:
        """A block of queries and keys."""
        value = None if self.value is None else slice_axis(self.value, 2, *keys)
        return Operands(
            slice_axis(self.query, 3, *queries),
            slice_axis(self.key, 2, *keys),
            value,
            mask_rules.cut(self.bias, queries, keys),
            self.score_vector,
        )


class Rows(NamedTuple):
    """The results for a block of queries.

    Attributes:
        output: (B, K, G, t, V).
        lse: (B, K, G, t, 1).
        nonfinite: which rows see a nonfinite vector: booleans (B, K, G, t, 1), or None where arithmetic decides.
        visible: booleans that broadcast to (B, K, G, t, s): which keys a row sees; None for all.
    """

    output: Any
    lse: Any
    nonfinite: Any
    visible: Any


@dataclasses.dataclass(frozen=True)
class BlockAttention:
    """An attention without its operands.

    Attributes:
        score: how a query and a key make a score.
        mask: which pairs count, or None for all.
        slopes: (N,) of ALiBi, or None.
        rate: dropout, 0 <= rate < 1.
        seed: (2,) uint32 of the dropout, or None.
        heads: (K, G).
        lengths: (T, S).
        scores_per_pair: numbers in memory for one (query, key) pair: B * N, times U for additive attention.
        keep_mask: the backend's dropout.
    """

    score: Score
    mask: Mask | None
    slopes: Any
    rate: float
    seed: Any
    heads: tuple[int, int]
    lengths: tuple[Size, Size]
    scores_per_pair: Size
    keep_mask: KeepMask

    def attend(self, block: Operands, queries: Span, keys: Span) -> Rows:
        """Queries against all keys that they may see. Differentiable by the backend."""
        visible = self.visible(queries, keys)
        nonfinite, safe = None, block
        if visible is not None:
            nonfinite = nonfinite_rows(block, visible)
            query, key, value, *others = block
            safe = Operands(*map(zero_nonfinite, (query, key, value)), *others)
        addend = self.addend(block, visible, queries, keys)
        seen = seen_rows(addend)
        logits = self.logits(safe, finite_rows(addend, seen))
        weights, lse = softmax(logits)
        keep = self.keep_factor(block, queries, keys)
        if keep is not None:
            weights = weights * keep
        output = apply_weights(weights, safe.value)
        if seen is not None:
            output, lse = fill(~seen, output, 0.0), fill(~seen, lse, -math.inf)
        if nonfinite is not None:
            nonfinite = ops.logical_and(nonfinite, seen)
            output, lse = fill(nonfinite, output, math.nan), fill(nonfinite, lse, math.nan)
        return Rows(output, lse, nonfinite, visible)

    def visible(self, queries: Span, keys: Span) -> Any:
        """Booleans that broadcast to (B, K, G, t, s) and have s, or None for "everything"."""
        seen = None if self.mask is None else self.mask.visible(queries, keys, *self.lengths)
        if seen is None:
            return None
        if seen.shape[3] != keys.length:
            seen = ops.logical_and(seen, ops.ones((1, 1, 1, keys.length), "bool"))
        return self.split_heads(seen)

    def addend(self, block: Operands, visible: Any, queries: Span, keys: Span) -> Any:
        """The sum of bias and ALiBi, -inf where hidden; broadcasts to (B, K, G, t, s). None for 0."""
        total = None
        if block.bias is not None:
            total = self.split_heads(fill(block.bias <= HIDING_BIAS, block.bias, -math.inf))
        if self.slopes is not None:
            slopes = ops.reshape(self.slopes, (1, -1, 1, 1))
            alibi = self.split_heads(-slopes * self.distance(block, queries, keys))
            total = alibi if total is None else total + alibi
        if visible is not None:
            shown = ops.zeros((), block.query.dtype) if total is None else total
            total = ops.where(visible, shown, ops.full((), -math.inf, block.query.dtype))
        return total

    def logits(self, block: Operands, addend: Any) -> Any:
        """The scores of a block plus the addend, (B, K, G, t, s)."""
        scores = self.score.apply(block.query, block.key, block.score_vector, _times_transposed)
        return scores if addend is None else scores + addend

    def distance(self, block: Operands, queries: Span, keys: Span) -> Any:
        """|i + a - j| of query i and key j, where `a` is the mask's alignment: (t, s) or (B, 1, t, s)."""
        align = 0 if self.mask is None else self.mask.alignment
        here = queries.positions[:, None] + as_column(offset(align, *self.lengths))
        return ops.cast(ops.abs(here - keys.positions), block.query.dtype)

    def keep_factor(self, block: Operands, queries: Span, keys: Span) -> Any:
        """The factors of the weights, 0 or 1 / (1 - rate); None without dropout."""
        if not self.rate:
            return None
        batch, heads, dtype = size(block.query, 0), math.prod(self.heads), block.query.dtype
        keep = self.keep_mask(self.rate, self.seed, batch, heads, queries, keys)
        return self.split_heads(ops.cast(keep, dtype) * (1 / (1 - self.rate)))

    def split_heads(self, x: Any) -> Any:
        """(B or 1, N or 1, t, s) to (B or 1, K or 1, G or 1, t, s)."""
        if x.shape[1] == 1:
            return x[:, :, None]
        batch, _, queries, keys = sizes(x)
        return ops.reshape(x, (batch, *self.heads, queries, keys))

    def join_heads(self, x: Any) -> Any:
        """(B, K, G, t, s) to (B, N, t, s)."""
        batch, _, _, queries, keys = sizes(x)
        return ops.reshape(x, (batch, self.heads[0] * self.heads[1], queries, keys))


def softmax(logits: Any) -> tuple[Any, Any]:
    """The softmax along the last axis, and its log-sum-exp, which keeps that axis with length 1."""
    row_max = ops.stop_gradient(ops.max(logits, axis=-1, keepdims=True))
    powers = ops.exp(logits - row_max)
    row_sum = ops.sum(powers, axis=-1, keepdims=True)
    return powers / row_sum, row_max + ops.log(row_sum)


def prepare(
    spec: AttentionSpec,
    tensors: Tensors,
    keep_mask: KeepMask,
) -> tuple[BlockAttention, Operands]:
    """The attention and its operands, in the shapes of this file. An empty axis of keys becomes one hidden key."""
    axis = spec.heads_axis

    def split(x: Any) -> Any:
        """(B, heads, T or S, features) in the spec's dtype."""
        if x is None:
            return None
        x = ops.cast(x, spec.dtype)
        if axis is None:
            return x[:, None]
        return ops.swapaxes(x, 1, 2) if axis == 2 else x

    query, key, value = map(split, tensors[:3])
    query, bias = spec.score.add_bias(query, tensors.bias)
    mask = spec.mask
    heads = (spec.kv_heads, spec.queries_per_kv)
    batch, _, length, width = sizes(query)
    query = ops.reshape(query, (batch, *heads, length, width))
    if key.shape[2] == 0:
        mask = Mask.dense(ops.zeros((1, 1, 1, 1), "bool"))
        key, value = (None if x is None else _pad_last_but_one(x) for x in (key, value))
        if bias is not None and bias.shape[3] == 0:
            bias = ops.pad(bias, [[0, 0], [0, 0], [0, 0], [0, 1]])
    operands = Operands(query, key, value, bias, tensors.score_vector)
    per_pair = spec.heads[0] * spec.score.numbers_per_pair(width) * batch
    lengths = (length, size(key, 2))
    attention = BlockAttention(
        spec.score,
        mask,
        tensors.slopes,
        spec.dropout,
        tensors.seed,
        heads,
        lengths,
        per_pair,
        keep_mask,
    )
    return attention, operands


def _pad_last_but_one(x: Any) -> Any:
    return ops.pad(x, [[0, 0], [0, 0], [0, 1], [0, 0]])


def join(spec: AttentionSpec, tensors: Tensors, output: Any, lse: Any) -> tuple[Any, Any]:
    """Output (B, K, G, T, V) and log-sum-exp (B, K, G, T, 1) or None in the shapes of `Implementation.attend`."""
    batch, kv_heads, queries_per_kv, length, width = sizes(output)
    output = ops.cast(output, tensors.query.dtype)
    if spec.heads_axis is None:
        return output[:, 0, 0], None if lse is None else lse[:, 0, 0, :, 0]
    output = ops.reshape(output, (batch, kv_heads * queries_per_kv, length, width))
    if spec.heads_axis == 2:
        output = ops.swapaxes(output, 1, 2)
    if lse is not None:
        lse = ops.reshape(lse, (batch, kv_heads * queries_per_kv, length))
    return output, lse


def fill(where: Any, x: Any, number: float) -> Any:
    """`x` with a number where the condition holds."""
    return ops.where(where, ops.full((), number, x.dtype), x)


def zero_nonfinite(x: Any) -> Any:
    """`x` with 0 in place of every nonfinite number; None stays."""
    return None if x is None else fill(~ops.isfinite(x), x, 0.0)


def has_nonfinite(x: Any) -> Any:
    """Whether each vector along the last axis holds a nonfinite number; that axis stays with length 1."""
    return ~ops.all(ops.isfinite(x), axis=-1, keepdims=True)


def nonfinite_keys(block: Operands) -> Any:
    """(B, K, s, 1): whether the key or its value holds a nonfinite number."""
    found = has_nonfinite(block.key)
    return found if block.value is None else ops.logical_or(found, has_nonfinite(block.value))


def nonfinite_rows(block: Operands, visible: Any) -> Any:
    """Which rows hold or see a nonfinite vector: booleans (B, K, G, t, 1)."""
    hits = ops.logical_and(visible, ops.swapaxes(nonfinite_keys(block), 2, 3)[:, :, None])
    seen = ops.any(hits, axis=-1, keepdims=True)
    return ops.logical_or(has_nonfinite(block.query), seen)


def keys_of_rows(visible: Any, rows: Any) -> Any:
    """Which keys are seen by one of these rows (B, K, G, t, 1): booleans (B, K, s, 1)."""
    hits = ops.any(ops.logical_and(visible, rows), axis=(2, 3))
    return hits[..., None]


def seen_rows(addend: Any) -> Any:
    """Which rows see any key of a block: booleans that broadcast to (B, K, G, t, 1), or None for all."""
    return None if addend is None else ops.max(addend, axis=-1, keepdims=True) != -math.inf


def finite_rows(addend: Any, seen: Any) -> Any:
    """The addend with 0 in rows that see nothing: the softmax of only -inf is NaN."""
    return None if addend is None else fill(~seen, addend, 0.0)


def _times_transposed(x: Any, y: Any) -> Any:
    # `@`, as `keras.ops.matmul` computes products of float64 in float32 on PyTorch.
    return x @ ops.swapaxes(y, 2, 3)


def apply_weights(weights: Any, value: Any) -> Any:
    """Weights (B, K, G, t, s) times value (B, K, s, V) to (B, K, G, t, V)."""
    return unfold(fold(weights) @ value, weights.shape[2])
