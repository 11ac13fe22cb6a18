"""The forward pass, one block of queries at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from heed.ops.backends.tensorflow.portable.blocks import Plan, visible_blocks
from heed.ops.backends.tensorflow.portable.finite import Operands, nan_where
from heed.ops.backends.tensorflow.portable.loops import State, loop
from heed.ops.backends.tensorflow.portable.tile import (
    BlockAttention,
    apply_weights,
    finite_rows,
    seen_rows,
)
from heed.ops.sizes import Size, Span, size, sizes


@dataclasses.dataclass(frozen=True)
class BlockResult:
    """The result for a block of queries.

    Attributes:
        output: (B, K, G, t, V).
        lse: (B, K, G, t, 1), or None if not requested.
        softmax: (B, K, G, t, 2) for tiles: row_max and row_sum, the sum of exp(score - row_max); else None.
        seen: which rows see any key: booleans that broadcast to (B, K, G, t, 1), or None for all.
        nonfinite: which rows see a nonfinite vector, likewise; None if the arithmetic decides.
    """

    output: tf.Tensor
    lse: tf.Tensor | None
    softmax: tf.Tensor | None
    seen: tf.Tensor | None
    nonfinite: tf.Tensor | None

    def finish(self) -> list[tf.Tensor]:
        """Output, lse and softmax without None: 0, -inf, 0 in rows that see nothing, NaN in nonfinite rows."""
        parts = [(self.output, 0.0), (self.lse, float("-inf")), (self.softmax, 0.0)]
        results = []
        for x, unseen in parts:
            if x is None:
                continue
            if self.seen is not None:
                x = tf.where(self.seen, x, tf.constant(unseen, x.dtype))
            if self.nonfinite is not None:
                x = nan_where(tf.logical_and(self.nonfinite, self.seen), x)
            results.append(x)
        return results


def forward(
    attention: BlockAttention, plan: Plan, operands: Operands, want_lse: bool
) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor | None]:
    """Output (B, K, G, T, V), log-sum-exp (B, K, G, T, 1) or None, and for tiles `BlockResult.softmax`."""
    tiles = plan.groups is None
    widths = [size(operands.value, 3), *([2] if tiles else [1] if want_lse else [])]
    totals = [plan.over_queries(operands.query, 3, width) for width in widths]

    def run(first: Size, last: Size, state: State, keys: Span | None) -> State:
        # After the previous group, so that its keys do not wait in memory.
        with tf.control_dependencies([x.flow for x in state]):
            visible_keys = operands if keys is None else operands.cut_keys(keys)

        def body(index: Size, state: State) -> State:
            block = visible_keys.cut_queries(plan.queries(index))
            if keys is None:
                rows = online_softmax(attention, plan, block)
            else:
                rows = whole_rows(attention, block, want_lse)
            return [x.write(index, y) for x, y in zip(state, rows.finish(), strict=True)]

        return loop(first, last, body, state)

    lists = [total.start() for total in totals]
    if plan.groups is None:
        lists = run(0, plan.query_blocks, lists, None)
    else:
        for group in plan.groups:
            lists = run(group.first, group.last, lists, group.keys)
    joined = [total.finish(x) for total, x in zip(totals, lists, strict=True)]
    if not tiles:
        return joined[0], joined[1] if want_lse else None, None
    row_max, row_sum = tf.split(joined[1], 2, axis=-1)
    return joined[0], row_max + tf.math.log(row_sum) if want_lse else None, joined[1]


def whole_rows(attention: BlockAttention, block: Operands, want_lse: bool) -> BlockResult:
    """A block of queries against all keys it may see at once. Differentiable by TensorFlow."""
    visible = attention.visible(block)
    addend = attention.addend(block, visible)
    seen = seen_rows(addend)
    logits = attention.logits(block, finite_rows(addend, seen))
    weights = tf.nn.softmax(logits)
    lse = None
    if want_lse:
        # From the largest weight of a row, without a second exponential.
        lse = tf.reduce_max(logits, -1, keepdims=True) - tf.math.log(
            tf.reduce_max(weights, -1, keepdims=True)
        )
    keep = attention.keep_factor(block)
    if keep is not None:
        weights *= keep
    return BlockResult(
        apply_weights(weights, block.value), lse, None, seen, block.nonfinite_rows(visible)
    )


def online_softmax(attention: BlockAttention, plan: Plan, rows: Operands) -> BlockResult:
    """A block of queries against its blocks of keys, one by one, with a running maximum and sum."""

    def step(tile: Operands, logits: tf.Tensor, state: State) -> State:
        output, row_max, row_sum = state
        new_max = tf.maximum(row_max, tf.reduce_max(logits, -1, keepdims=True))
        shrink = tf.exp(row_max - new_max)
        weights = tf.exp(logits - new_max)
        row_sum = row_sum * shrink + tf.reduce_sum(weights, -1, keepdims=True)
        keep = attention.keep_factor(tile)
        if keep is not None:
            weights *= keep
        return [output * shrink + apply_weights(weights, tile.value), new_max, row_sum]

    dtype, zeros = rows.query.dtype, row_zeros(rows)
    output = row_zeros(rows, size(rows.value, 3))
    # Starts finite: hidden scores are -inf, and -inf - -inf is NaN.
    state = [output, zeros + dtype.min, zeros]
    (output, row_max, row_sum), nonfinite = over_tiles(attention, plan, rows, step, state)
    seen = tf.not_equal(row_sum, 0)
    output /= tf.where(seen, row_sum, tf.ones((), dtype))
    return BlockResult(output, None, tf.concat([row_max, row_sum], -1), seen, nonfinite)


def row_zeros(rows: Operands, width: Size = 1) -> tf.Tensor:
    """Zeros (B, K, G, t, width)."""
    return tf.zeros(tf.stack([*sizes(rows.query)[:4], width]), rows.query.dtype)


def over_tiles(
    attention: BlockAttention,
    plan: Plan,
    rows: Operands,
    step: Callable[[Operands, tf.Tensor, State], State],
    state: State,
) -> tuple[State, tf.Tensor | None]:
    """`state = step(tile, logits, state)` for each block of keys that a block of queries can see.

    Returns: the last state, and which rows see a nonfinite vector, see `BlockResult`.
    """

    def body(index: Size, state: State) -> State:
        tile = rows.cut_keys(plan.keys(index))
        visible = attention.visible(tile, plan.fresh_keys(index))
        logits = attention.logits(tile, attention.addend(tile, visible))
        following = {"rows": step(tile, logits, state["rows"])}
        if rows.guarded:
            following["nonfinite"] = tf.logical_or(state["nonfinite"], tile.nonfinite_rows(visible))
        return following

    both = {"rows": state}
    if rows.guarded:
        both["nonfinite"] = tf.zeros_like(rows.nonfinite_query, tf.bool)
    both = loop(*visible_blocks(plan, attention.mask, rows.queries), body, both)
    return both["rows"], both.get("nonfinite")
