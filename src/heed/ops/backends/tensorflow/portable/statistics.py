"""Entropy, mean distance and mass of the rows of weights, over one block of scores after the other."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from heed.ops.backends.tensorflow.portable.blocks import Plan, tile_plan, visible_blocks
from heed.ops.backends.tensorflow.portable.finite import Operands, nan_where
from heed.ops.backends.tensorflow.portable.forward import fresh_keys
from heed.ops.backends.tensorflow.portable.loops import State, block_list, join, loop
from heed.ops.backends.tensorflow.portable.problem import Problem
from heed.ops.backends.tensorflow.portable.tile import Attention
from heed.ops.backends.tensorflow.run_time_checks import check_operands
from heed.ops.mask_rules import cut
from heed.ops.sizes import Size, Span, is_static, sizes

# Its exponential is 0 in every float type, and it times any sum is finite.
_FAR_BELOW = -1e4


def statistics_of(problem: Problem, chosen: list[int]) -> list[tf.Tensor]:
    """Entropy and distance (B, K, G, T, 1) and mass (B, K, G, T, number of chosen keys)."""
    attention, bias = problem.attention, problem.bias
    query, key, _, mask = check_operands(
        problem.query, problem.key, None, attention.mask, attention.lengths
    )
    attention = dataclasses.replace(attention, mask=mask)
    shape, widths = sizes(query)[:4], (1, 1, len(chosen))
    if is_static(*attention.lengths) and 0 in attention.lengths:
        return [tf.zeros(tf.stack([*shape, width]), query.dtype) for width in widths]
    # Values that are 1 on a chosen key: what an attention returns for them is the mass.
    marks = tf.one_hot(tf.constant(chosen, tf.int32), attention.lengths[1], axis=0)
    marks = tf.cast(marks, query.dtype)[None, None]
    operands = Operands.of(query, key, marks, guarded=attention.mask is not None)
    plan = tile_plan(*attention.lengths, problem.scores_per_pair)
    shapes = [[*shape[:3], plan.query_block, width] for width in widths]
    count = plan.query_blocks
    lists = [block_list(count, None if is_static(count) else x, query.dtype) for x in shapes]

    def body(index: Size, state: State) -> State:
        queries = plan.queries(index)
        rows = _rows(attention, plan, operands.cut_queries(queries), bias, queries)
        return [x.write(index, row) for x, row in zip(state, rows, strict=True)]

    lists = loop(0, count, body, lists)
    return [
        join(x, count, plan.query_length, 3, block) for x, block in zip(lists, shapes, strict=True)
    ]


def _rows(
    attention: Attention, plan: Plan, block: Operands, bias: tf.Tensor | None, queries: Span
) -> list[tf.Tensor]:
    """The same of a block of queries, over one block of keys after the other.

    With the largest score m so far, the running sums are of e^(a-m), of e^(a-m) (a-m), of e^(a-m) times the distance
    and of e^(a-m) times the marks. The entropy is ln(sum e^(a-m)) - sum e^(a-m) (a-m) / sum e^(a-m), in which no two
    large numbers cancel.
    """
    dtype = block.query.dtype
    shape = [*sizes(block.query)[:3], queries.length]
    zeros = tf.zeros(tf.stack([*shape, 1]), dtype)

    def body(index: Size, state: State) -> State:
        row_max, row_sum, below, far, mass = state[:5]
        keys = plan.keys(index)
        tile = block.cut_keys(keys)
        visible = attention.visible(queries, keys, fresh_keys(plan, index))
        addend = attention.addend(queries, keys, cut(bias, queries, keys), visible, dtype)
        logits = attention.score(tile.query, tile.key)
        if addend is not None:
            logits += addend
        new_max = tf.maximum(row_max, tf.reduce_max(logits, -1, keepdims=True))
        drop = tf.maximum(row_max - new_max, _FAR_BELOW)
        shrink = tf.exp(drop)
        logits -= new_max
        # A hidden pair adds 0 to the second sum, not 0 * inf.
        logits = tf.where(logits < _FAR_BELOW, tf.constant(_FAR_BELOW, dtype), logits)
        weights = tf.exp(logits)
        distance = weights * attention.distance(queries, keys, dtype)[..., None, :, :]
        following = [
            new_max,
            row_sum * shrink + tf.reduce_sum(weights, -1, keepdims=True),
            (below + drop * row_sum) * shrink + tf.reduce_sum(weights * logits, -1, keepdims=True),
            far * shrink + tf.reduce_sum(distance, -1, keepdims=True),
            mass * shrink + _shares(weights, tile.value),
        ]
        if block.guarded:
            following.append(tf.logical_or(state[5], tile.nonfinite_rows(visible)))
        return following

    mass = zeros * tf.zeros((block.value.shape[3],), dtype)
    state = [zeros + dtype.min, zeros, zeros, zeros, mass]
    if block.guarded:
        state.append(tf.zeros_like(zeros, tf.bool))
    bounds = visible_blocks(plan, attention.mask, queries)
    _, row_sum, below, far, mass, *nonfinite = loop(*bounds, body, state)
    seen = tf.not_equal(row_sum, 0)
    row_sum = tf.where(seen, row_sum, tf.ones((), dtype))
    entropy = tf.math.log(row_sum) - below / row_sum
    rows = [
        tf.where(seen, x, tf.zeros((), dtype)) for x in (entropy, far / row_sum, mass / row_sum)
    ]
    if not nonfinite:
        return rows
    return [nan_where(tf.logical_and(nonfinite[0], seen), x) for x in rows]


def _shares(weights: tf.Tensor, marks: tf.Tensor) -> tf.Tensor:
    """Weights (B, K, G, t, s) times the marks of the keys (1, 1, s, n), which all heads share: (B, K, G, t, n).

    As one product of two matrices. A batched one would broadcast (B, 1, m, k) against (1, 1, k, n), for which
    TensorFlow's oneDNN kernel gives wrong numbers or writes past its buffers.
    """
    return tf.tensordot(weights, marks[0, 0], 1)
