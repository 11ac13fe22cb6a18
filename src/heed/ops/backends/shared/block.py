"""One block of attention in `keras.ops`: its results and their first derivatives.

Shapes, with G = N / K query heads for each key/value head: query (B, K, G, t, H), key (B, K, s, H), value (B, K, s, V),
scores (B, K, G, t, s), all in the compute dtype. A block holds whole rows: all keys that its queries may see.

Nonfinite numbers: a weight of 0 does not hide a NaN in a product (0 * NaN = NaN). So under a mask, sums run over finite
substitutes, and NaN is then written into each row that sees a nonfinite key or value, or holds a nonfinite query.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras import ops

from heed.ops.backends.shared import _dropout
from heed.ops.backends.shared.operands import (
    Block,
    Operands,
    fill,
    has_nonfinite,
    zero_nonfinite,
)
from heed.ops.mask import Mask
from heed.ops.mask_rules import FULL, MaskRule, as_column, offset
from heed.ops.scores import Score, fold, number, unfold
from heed.ops.sizes import Size, Span, is_static, size, sizes, slice_axis
from heed.ops.spec import AttentionSpec, Tensors

# A bias of this or less hides its key as -inf does; above, it is an ordinary number.
HIDING_BIAS = -1e30
# Above every score, and finite in float32.
_HUGE = 3e38
# Stands for a batch of unknown size in the choice of blocks.
_USUAL_BATCH = 8

# The result of a function of a list of tensors, and a function that turns its gradient into theirs.
Vjp = Callable[[Callable[[Sequence[Any]], Any], Sequence[Any]], tuple[Any, Callable[[Any], Any]]]


class Rows(NamedTuple):
    """The results for a block of queries."""

    output: Any  # (B, K, G, t, V)
    lse: Any  # (B, K, G, t, 1); None if not requested
    # `row_max`, `row_sum`: (B, K, G, t, 1), the highest score and the sum of exp(score - row_max); likewise
    row_max: Any
    row_sum: Any
    seen: Any  # which rows see any key: booleans that broadcast to (B, K, G, t, 1), or None for all
    nonfinite: Any  # which rows see a nonfinite vector, likewise; None where arithmetic decides
    visible: Any  # booleans that broadcast to (B, K, G, t, s): which keys a row sees; None for all

    def mark(self, x: Any, unseen: float) -> Any:
        """Return numbers (B, K, G, t, x) with `unseen` in rows without keys, NaN in nonfinite ones."""
        if self.seen is not None:
            x = fill(~self.seen, x, unseen)
        return x if self.nonfinite is None else fill(self.nonfinite, x, math.nan)

    def bad(self, output: Any, lse: Any) -> Any:
        """Return which rows are nonfinite or receive a nonfinite number, from the gradients of output and log-sum-exp.

        Booleans (B, K, G, t, 1); None where arithmetic decides.
        """
        if self.nonfinite is None:
            return None
        received = ops.logical_or(has_nonfinite(output), has_nonfinite(lse))
        if self.visible is not None:
            received = ops.logical_and(received, ops.any(self.visible, axis=-1, keepdims=True))
        return ops.logical_or(self.nonfinite, received)


class Incoming(NamedTuple):
    """What the gradients of a block of queries are computed of."""

    gradient: Any  # (B, K, G, t, V), of the output
    # (B, K, G, t, 1): sum of output * its gradient, less the gradient of the log-sum-exp
    delta: Any
    # (B, K, G, t, 1), the highest score of rows that go on beyond the block; None for whole rows. With it, gradient and
    # delta are divided by the row_sum, instead of the weights. Huge for rows that see nothing (or a nonfinite key), so
    # that their weights become 0.
    row_max: Any = None

    def without(self, idle: Any) -> Incoming:
        """Return the same with 0 for the rows of `idle`."""
        if idle is None:
            return self
        gradient, delta = (fill(idle, x, 0.0) for x in self[:2])
        return self._replace(gradient=gradient, delta=delta)


class Results(NamedTuple):
    """The results of an attention, and their incoming gradients."""

    # `output`, `output_gradient`: (B, K, G, T, V)
    output: Any
    output_gradient: Any
    lse_gradient: Any = None  # (B, K, G, T, 1), or None for 0
    # (B, K, G, T, 2): row_max and row_sum of rows that go on beyond these keys; else None
    softmax: Any = None

    def mark(self, block: Block) -> Block:
        """Return the block with marks of rows of nonfinite gradients, too, which only spread to the keys they see."""
        if block.marks is None:
            return block
        found = block.marks.query
        for x in (self.output_gradient, self.lse_gradient, self.softmax):
            if x is not None:
                found = ops.logical_or(found, has_nonfinite(x))
        return dataclasses.replace(block, marks=block.marks._replace(query=found))

    def cut(self, queries: Span, *, guarded: bool) -> Incoming:
        """Return what a block of queries needs; finite numbers if guarded."""
        safe = zero_nonfinite if guarded else lambda x: x
        gradient = slice_axis(self.output_gradient, 3, *queries)
        output = slice_axis(self.output, 3, *queries)
        delta = safe(ops.sum(output * gradient, axis=-1, keepdims=True))
        if self.lse_gradient is not None:
            delta = delta - safe(slice_axis(self.lse_gradient, 3, *queries))
        if self.softmax is None:
            return Incoming(safe(gradient), delta)
        softmax = slice_axis(self.softmax, 3, *queries)
        row_max, total = softmax[..., :1], softmax[..., 1:]
        usable = ops.not_equal(total, 0)
        if guarded:
            usable = ops.logical_and(usable, ops.isfinite(total))
        share = fill(~usable, 1 / total, 0.0)
        row_max = fill(~usable, row_max, _HUGE)
        return Incoming(safe(gradient) * share, delta * share, row_max)


class Arithmetic(NamedTuple):
    """What a backend computes faster, or more exactly, than `keras.ops`."""

    times: Callable[..., Any]  # the product of two batches of matrices, each transposed on request
    row_max: Callable[[Any], Any]  # (..., 1): the largest number of each row, -inf for an empty one
    # weights, row_max and row_sum of logits, the last two (None, None) unless requested
    softmax: Callable[[Any, bool], tuple[Any, Any, Any]]


@dataclasses.dataclass(frozen=True)
class BlockAttention:
    """An attention without its operands."""

    score: Score  # how a query and a key make a score
    mask: Mask | None  # which pairs count, or None for all
    slopes: Any  # (N,) of ALiBi, or None
    rate: float  # dropout, 0 <= rate < 1
    seed: Any  # (2,) uint32 of the dropout, or None
    heads: tuple[int, int]  # (K, G)
    lengths: tuple[Size, Size]  # (T, S)
    numbers_per_pair: int  # numbers in memory for one score: 1, or U for additive attention
    scores_per_pair: int  # the same for one (query, key) pair of all heads and batch entries
    arithmetic: Arithmetic  # of the backend

    @property
    def limits(self) -> tuple[MaskRule, ...]:
        """What says which keys a block of queries can see: the rules of the mask, and those of the score."""
        return (*(() if self.mask is None else self.mask.rules), *self.score.limits)

    def whole(self, operands: Operands, *, guarded: bool | None = None) -> Block:
        """Return the block of all queries and keys, guarded by default under a mask: it may hide nonfinite numbers."""
        queries, keys = (Span(0, length) for length in self.lengths)
        block = Block(operands, queries, keys, self.heads)
        guarded = self.mask is not None if guarded is None else guarded
        return block.guard() if guarded else block

    def attend(self, block: Block, *, want_lse: bool = True) -> Rows:
        """Return the results of queries and all keys that they may see. Differentiable by the backend."""
        visible = self.visible(block)
        nonfinite = self.nonfinite_rows(block, visible)
        logits, seen = self.logits(self.scores(block, visible), self.addend(block, visible))
        weights, row_max, row_sum = self.arithmetic.softmax(logits, want_lse)
        keep = self.keep_factor(block)
        if keep is not None:
            weights = weights * keep
        output = unfold(self.arithmetic.times(fold(weights), block.operands.value), self.heads[1])
        if nonfinite is not None and seen is not None:
            nonfinite = ops.logical_and(nonfinite, seen)
        rows = Rows(output, None, row_max, row_sum, seen, nonfinite, visible)
        lse = rows.mark(row_max + ops.log(row_sum), -math.inf) if want_lse else None
        return rows._replace(output=rows.mark(output, 0.0), lse=lse)

    def gradients(self, block: Block, incoming: Incoming, vjp: Vjp) -> Operands:
        """Return the gradients of a block's operands.

        The softmax is differentiated by hand, as its weights are all that it takes; the scores by `vjp`.
        """
        operands, times = block.operands, self.arithmetic.times
        names = [i for i, x in enumerate(operands.flat()) if x is not None and i not in (2, 3)]

        def scores_of(inputs: Sequence[Any]) -> Any:
            flat = operands.flat()
            for place, x in zip(names, inputs, strict=True):
                flat[place] = x
            return self.scores(dataclasses.replace(block, operands=Operands.of(flat)), visible)

        visible = self.visible(block)
        scores, pull = vjp(scores_of, [operands.flat()[place] for place in names])
        addend = self.addend(block, visible)
        if incoming.row_max is None:
            logits, seen = self.logits(scores, addend)
        else:
            logits, seen = scores if addend is None else scores + addend, self.seen_rows(addend)

        # Idle rows add nothing: rows without keys, rows that another block holds, nonfinite rows.
        idle = None if seen is None else ~seen
        if block.fresh is not None:
            idle = ~block.fresh if idle is None else ops.logical_or(idle, ~block.fresh)
        nonfinite = self.nonfinite_rows(block, visible)
        if nonfinite is not None:
            if idle is not None:
                nonfinite = ops.logical_and(nonfinite, ~idle)
            idle = nonfinite if idle is None else ops.logical_or(idle, nonfinite)
        incoming = incoming.without(idle)

        if incoming.row_max is None:
            weights = self.arithmetic.softmax(logits, False)[0]
        else:  # exp(score - lse) would add the rounding error of lse
            weights = ops.exp(logits - incoming.row_max)
        keep = self.keep_factor(block)
        dropped = weights if keep is None else weights * keep
        rows, value = incoming.gradient, operands.value
        if keep is None:
            # The product also subtracts delta, which saves a pass over the block.
            rows = ops.concatenate([incoming.gradient, -incoming.delta], -1)
            value = (block if block.value_and_one is not None else block.with_one()).value_and_one
        of_weights = unfold(times(fold(rows), value, transpose_y=True), self.heads[1])
        if keep is not None:
            of_weights = of_weights * keep - incoming.delta
        of_scores = weights * of_weights
        found: list[Any] = [None] * len(operands.flat())
        for place, x in zip(names, pull(of_scores), strict=True):
            found[place] = x
        found[2] = times(fold(dropped), fold(incoming.gradient), transpose_x=True)
        if operands.bias is not None:
            axes = tuple(axis for axis in range(4) if operands.bias.shape[axis] == 1)
            full = self.join_heads(of_scores)
            found[3] = ops.sum(full, axis=axes, keepdims=True) if axes else full
        return Operands.of(self.mark_gradients(found, visible, nonfinite))

    def mark_gradients(self, flat: Sequence[Any], visible: Any, bad: Any) -> Sequence[Any]:
        """Return the gradients of `Operands.flat` with NaN for bad queries, and for the keys and values that they see.

        Args:
            flat: the gradients.
            visible: see `visible`.
            bad: booleans (B, K, G, t, 1), or None for no query.
        """
        if bad is None:
            return flat
        query, key, value, *others = flat
        hit = self.keys_of_rows(visible, bad)
        key, value = (fill(hit, x, math.nan) for x in (key, value))
        return [fill(bad, query, math.nan), key, value, *others]

    def visible(self, block: Block) -> Any:
        """Return booleans that broadcast to (B, K, G, t, s) and have s, or None for "everything"."""
        spans = (block.queries, block.keys, *self.lengths)
        if self.mask is None or self.mask.classify_block(*spans) == FULL:
            return None
        seen = self.mask.visible(*spans)
        if seen is None:
            return None
        count = block.keys.length
        if not is_static(count) or seen.shape[3] != count:
            seen = ops.logical_and(seen, ops.ones((1, 1, 1, count), "bool"))
        return self.split_heads(seen)

    def addend(self, block: Block, visible: Any) -> Any:
        """Return the sum of bias and ALiBi, -inf where hidden; broadcasts to (B, K, G, t, s). None for 0."""
        total, bias = None, block.operands.bias
        if bias is not None:
            total = self.split_heads(fill(bias <= HIDING_BIAS, bias, -math.inf))
        if self.slopes is not None:
            slopes = ops.reshape(self.slopes, (1, -1, 1, 1))
            alibi = self.split_heads(-slopes * self.distance(block))
            total = alibi if total is None else total + alibi
        if visible is not None:
            dtype = block.operands.query.dtype
            shown = ops.zeros((), dtype) if total is None else total
            total = ops.where(visible, shown, ops.full((), -math.inf, dtype))
        return total

    def scores(self, block: Block, visible: Any) -> Any:
        """Return the scores of a block, (B, K, G, t, s); see `Score.apply`."""
        times_transposed = functools.partial(self.arithmetic.times, transpose_y=True)
        return self.score.apply(block, times_transposed, visible)

    def logits(self, scores: Any, addend: Any) -> tuple[Any, Any]:
        """Return the scores plus the addend, and which rows see any key: see `seen_rows`. Other rows are 0."""
        if not self.score.hides:
            seen = self.seen_rows(addend)
            # The softmax of only -inf is NaN.
            return (scores if addend is None else scores + fill(~seen, addend, 0.0)), seen
        logits = scores if addend is None else scores + addend
        seen = self.seen_rows(logits)
        return fill(~seen, logits, 0.0), seen

    def distance(self, block: Block) -> Any:
        """Return |i + a - j| of query i and key j, with the mask's alignment `a`: (t, s) or (B, 1, t, s)."""
        align = 0 if self.mask is None else self.mask.alignment
        here = block.queries.positions[:, None] + as_column(offset(align, *self.lengths))
        return ops.cast(ops.abs(here - block.keys.positions), block.operands.query.dtype)

    def keep_factor(self, block: Block) -> Any:
        """Return the factors of the weights, 0 or 1 / (1 - rate); None without dropout."""
        if not self.rate:
            return None
        query, heads = block.operands.query, math.prod(self.heads)
        spans = (block.queries, block.keys)
        keep = _dropout.keep_mask(self.rate, self.seed, size(query, 0), heads, *spans)
        return self.split_heads(ops.cast(keep, query.dtype) * number(1 / (1 - self.rate), query))

    def split_heads(self, x: Any) -> Any:
        """Return (B or 1, N or 1, t, s) as (B or 1, K or 1, G or 1, t, s)."""
        if x.shape[1] == 1:
            return x[:, :, None]
        batch, heads, queries, keys = sizes(x)
        if not is_static(heads):
            x = ops.broadcast_to(x, (batch, math.prod(self.heads), queries, keys))
        return ops.reshape(x, (batch, *self.heads, queries, keys))

    def join_heads(self, x: Any) -> Any:
        """Return (B, K, G, t, s) as (B, N, t, s)."""
        batch, _, _, queries, keys = sizes(x)
        return ops.reshape(x, (batch, self.heads[0] * self.heads[1], queries, keys))

    def seen_rows(self, shown: Any) -> Any:
        """Return which rows have a number above -inf: booleans that broadcast to (B, K, G, t, 1), or None for all."""
        if shown is not None:
            return ops.not_equal(self.arithmetic.row_max(shown), -math.inf)
        count = self.lengths[1]
        return None if is_static(count) else ops.reshape(ops.not_equal(count, 0), (1,) * 5)

    def nonfinite_rows(self, block: Block, visible: Any) -> Any:
        """Return which rows hold or see a nonfinite vector: booleans (B, K, G, t, 1); None without marks."""
        marks = block.marks
        return None if marks is None else ops.logical_or(marks.query, self.sees(visible, marks.key))

    def sees(self, visible: Any, keys: Any) -> Any:
        """Return which rows see one of these keys (B, K, s, 1): booleans that broadcast to (B, K, G, t, 1)."""
        if visible is None:
            return ops.any(keys, axis=2, keepdims=True)[:, :, None]
        seen, keys = ops.cast(visible, "float32"), ops.cast(keys, "float32")
        if visible.shape[1] == 1 and visible.shape[2] == 1:
            # The mask has no heads: one product serves them all.
            count = self.arithmetic.times(seen[:, 0, 0], keys[..., 0], transpose_y=True)
            return ops.swapaxes(count, 1, 2)[:, :, None, :, None] > 0
        return self.arithmetic.times(seen, keys[:, :, None]) > 0

    def keys_of_rows(self, visible: Any, rows: Any) -> Any:
        """Return which keys are seen by one of these rows (B, K, G, t, 1): booleans that broadcast to (B, K, s, 1)."""
        if visible is None:
            return ops.any(rows, axis=(2, 3))[:, :, None]
        if visible.shape[3] == 1:
            rows = ops.any(rows, axis=3, keepdims=True)
        if visible.shape[1] == 1 and visible.shape[2] == 1:
            hits = ops.cast(ops.any(rows, axis=2)[..., 0], "float32")
            seen = ops.cast(visible[:, 0, 0], "float32")
            return self.arithmetic.times(hits, seen)[..., None] > 0
        seen, hits = ops.cast(visible, "float32"), ops.cast(rows, "float32")
        return ops.any(self.arithmetic.times(seen, hits, transpose_x=True) > 0, axis=2)


def softmax(logits: Any, wanted: bool) -> tuple[Any, Any, Any]:
    """Return the softmax along the last axis, and the maximum and sum of each row: see `Arithmetic.softmax`."""
    row_max = ops.stop_gradient(ops.max(logits, axis=-1, keepdims=True))
    powers = ops.exp(logits - row_max)
    row_sum = ops.sum(powers, axis=-1, keepdims=True)
    return powers / row_sum, row_max, row_sum


def row_max(x: Any) -> Any:
    """Return the largest number of each row: see `Arithmetic.row_max`."""
    return ops.max(x, axis=-1, keepdims=True)


def times(x: Any, y: Any, *, transpose_x: bool = False, transpose_y: bool = False) -> Any:
    """Return the product of two batches of matrices: see `Arithmetic.times`."""
    # `@`, as `keras.ops.matmul` computes products of float64 in float32 on PyTorch.
    x = ops.swapaxes(x, -1, -2) if transpose_x else x
    return x @ (ops.swapaxes(y, -1, -2) if transpose_y else y)


ARITHMETIC = Arithmetic(times, row_max, softmax)


def prepare(
    spec: AttentionSpec, tensors: Tensors, arithmetic: Arithmetic = ARITHMETIC
) -> tuple[BlockAttention, Operands]:
    """Return the attention and its operands, in the shapes of this file. No keys become one hidden key."""
    query, bias = spec.score.add_bias(by_key_heads(spec, tensors.query), tensors.bias)
    key = by_heads(spec, tensors.key)
    value = None if tensors.value is None else by_heads(spec, tensors.value)
    mask = spec.mask
    if key.shape[2] == 0:
        mask = Mask.dense(ops.zeros((1, 1, 1, 1), "bool"))
        one_more = [[0, 0], [0, 0], [0, 1], [0, 0]]
        key, value = (None if x is None else ops.pad(x, one_more) for x in (key, value))
        if bias is not None and bias.shape[3] == 0:
            bias = ops.pad(bias, [[0, 0], [0, 0], [0, 0], [0, 1]])
    operands = Operands(query, key, value, bias, tensors.score_vector, spec.score.operands)
    per_pair = max(1, spec.score.numbers_per_pair(spec.widths[0]))
    batch = size(query, 0)
    known = batch if is_static(batch) else _USUAL_BATCH
    attention = BlockAttention(
        spec.score,
        mask,
        tensors.slopes,
        spec.dropout,
        tensors.seed,
        (spec.kv_heads, spec.queries_per_kv),
        (size(query, 3), size(key, 2)),
        per_pair,
        spec.heads[0] * per_pair * known,
        arithmetic,
    )
    return attention, operands


def by_heads(spec: AttentionSpec, x: Any) -> Any:
    """Return an operand in the layout of the spec as (B, heads, T or S, features) in its dtype."""
    x = ops.cast(x, spec.dtype)
    if spec.heads_axis is None:
        return x[:, None]
    return ops.swapaxes(x, 1, 2) if spec.heads_axis == 2 else x


def by_key_heads(spec: AttentionSpec, x: Any) -> Any:
    """Return the query, the output or its gradient as (B, K, G, T, features)."""
    batch, _, length, width = sizes(x := by_heads(spec, x))
    return ops.reshape(x, (batch, spec.kv_heads, spec.queries_per_kv, length, width))


def join(spec: AttentionSpec, tensors: Tensors, output: Any, lse: Any) -> tuple[Any, Any]:
    """Return output (B, K, G, T, V) and log-sum-exp (B, K, G, T, 1) or None as `Implementation.attend` does."""
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
