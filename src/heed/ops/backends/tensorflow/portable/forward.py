"""The forward pass, block of queries by block of queries."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from heed.ops.backends.tensorflow.portable.blocks import Plan, visible_blocks
from heed.ops.backends.tensorflow.portable.finite import Operands, nan_where
from heed.ops.backends.tensorflow.portable.loops import State, block_list, join, loop
from heed.ops.backends.tensorflow.portable.tile import Attention, finite_rows, seen_rows, weigh
from heed.ops.mask_rules import cut
from heed.ops.sizes import Size, Span, size, sizes


@dataclasses.dataclass(frozen=True)
class Rows:
    """The result for a block of queries.

    Attributes:
        output: (B, K, G, t, V).
        lse: (B, K, G, t, 1), or None if nobody asked.
        softmax: of tiles (B, K, G, t, 2), the highest score of each row and its sum of exp(score - row_max); else None.
        seen: which rows see any key: booleans that broadcast to (B, K, G, t, 1), or None for all.
        nonfinite: which rows see something that is not finite; the same shape, or None for "left as it comes".
    """

    output: tf.Tensor
    lse: tf.Tensor | None
    softmax: tf.Tensor | None
    seen: tf.Tensor | None
    nonfinite: tf.Tensor | None

    def finished(self) -> list[tf.Tensor]:
        """Those of the first three that there are: 0, -inf, 0 in rows that see nothing, NaN in nonfinite ones."""
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
    attention: Attention,
    plan: Plan,
    operands: Operands,
    bias: tf.Tensor | None,
    parameters: Sequence[tf.Tensor],
    want_lse: bool,
) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor | None]:
    """Output (B, K, G, T, V), log-sum-exp (B, K, G, T, 1) or None, and of tiles what `Rows.softmax` is."""
    dtype, count = operands.query.dtype, plan.query_blocks
    shape = [*sizes(operands.query)[:3], plan.query_block]
    tiles = plan.groups is None
    widths = [size(operands.value, 3), *([2] if tiles else [1] if want_lse else [])]
    shapes = [[*shape, width] for width in widths]
    lists = [
        block_list(count, None if isinstance(count, int) else block, dtype) for block in shapes
    ]

    def run(first: Size, last: Size, state: State, keys: Span | None) -> State:
        # Not before the group before is done: its keys would only wait in memory.
        with tf.control_dependencies([x.flow for x in state]):
            visible_keys = operands if keys is None else operands.cut_keys(keys)

        def body(index: Size, state: State) -> State:
            queries = plan.queries(index)
            block = visible_keys.cut_queries(queries)
            if keys is None:
                rows = online_softmax(attention, plan, block, bias, parameters, queries)
            else:
                bias_block = cut(bias, queries, keys)
                rows = whole_rows(attention, block, bias_block, parameters, queries, keys, want_lse)
            return [x.write(index, y) for x, y in zip(state, rows.finished(), strict=True)]

        return loop(first, last, body, state)

    if plan.groups is None:
        lists = run(0, count, lists, None)
    else:
        for group in plan.groups:
            lists = run(group.first, group.last, lists, group.keys)
    joined = [
        join(x, count, plan.query_length, 3, block) for x, block in zip(lists, shapes, strict=True)
    ]
    if not tiles:
        return joined[0], joined[1] if want_lse else None, None
    row_max, row_sum = tf.split(joined[1], 2, axis=-1)
    return joined[0], row_max + tf.math.log(row_sum) if want_lse else None, joined[1]


def whole_rows(
    attention: Attention,
    block: Operands,
    bias: tf.Tensor | None,
    parameters: Sequence[tf.Tensor],
    queries: Span,
    keys: Span,
    want_lse: bool,
) -> Rows:
    """A block of queries against all the keys it may see, at once. Differentiable by TensorFlow.

    `bias` is that of the block, see `cut`.
    """
    dtype = block.query.dtype
    visible = attention.visible(queries, keys)
    addend = attention.addend(queries, keys, bias, visible, dtype)
    seen = seen_rows(addend)
    addend = finite_rows(addend, seen)
    logits = attention.score(block.query, block.key, *parameters)
    if addend is not None:
        logits += addend
    weights = tf.nn.softmax(logits)
    lse = None
    if want_lse:
        # From the largest weight of a row, which spares the fused softmax a second exponential.
        lse = tf.reduce_max(logits, -1, keepdims=True) - tf.math.log(
            tf.reduce_max(weights, -1, keepdims=True)
        )
    keep = attention.keep_factor(size(block.query, 0), queries, keys, dtype)
    if keep is not None:
        weights *= keep
    return Rows(weigh(weights, block.value), lse, None, seen, block.nonfinite_rows(visible))


def online_softmax(
    attention: Attention,
    plan: Plan,
    block: Operands,
    bias: tf.Tensor | None,
    parameters: Sequence[tf.Tensor],
    queries: Span,
) -> Rows:
    """A block of queries against one block of keys after the other, with a running maximum and sum."""
    dtype = block.query.dtype
    shape = [*sizes(block.query)[:3], queries.length]
    zeros = tf.zeros(tf.stack([*shape, 1]), dtype)

    def body(index: Size, state: State) -> State:
        output, row_max, row_sum = state[:3]
        keys = plan.keys(index)
        tile = block.cut_keys(keys)
        visible = attention.visible(queries, keys, fresh_keys(plan, index))
        addend = attention.addend(queries, keys, cut(bias, queries, keys), visible, dtype)
        logits = attention.score(tile.query, tile.key, *parameters)
        if addend is not None:
            logits += addend
        new_max = tf.maximum(row_max, tf.reduce_max(logits, -1, keepdims=True))
        shrink = tf.exp(row_max - new_max)
        weights = tf.exp(logits - new_max)
        row_sum = row_sum * shrink + tf.reduce_sum(weights, -1, keepdims=True)
        keep = attention.keep_factor(shape[0], queries, keys, dtype)
        if keep is not None:
            weights *= keep
        following = [output * shrink + weigh(weights, tile.value), new_max, row_sum]
        if block.guarded:
            following.append(tf.logical_or(state[3], tile.nonfinite_rows(visible)))
        return following

    # Finite from the start: hidden pairs have -inf, and no difference of the two may be taken.
    least_max = zeros + dtype.min
    state = [tf.zeros(tf.stack([*shape, size(block.value, 3)]), dtype), least_max, zeros]
    if block.guarded:
        state.append(tf.zeros_like(zeros, tf.bool))
    output, row_max, row_sum, *nonfinite = loop(
        *visible_blocks(plan, attention.mask, queries), body, state
    )
    seen = tf.not_equal(row_sum, 0)
    return Rows(
        output / tf.where(seen, row_sum, tf.ones((), dtype)),
        None,
        tf.concat([row_max, row_sum], -1),
        seen,
        nonfinite[0] if nonfinite else None,
    )


def fresh_keys(plan: Plan, index: Size) -> tf.Tensor | None:
    """(s,) booleans: False for the keys of the last block that the block before it has dealt with; None for all."""
    return plan.keys(index).positions >= index * plan.key_block if plan.keys_overlap else None
