"""Entropy, mean distance and mass of the rows of weights, one block of scores at a time."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from heed.ops.backends.tensorflow.portable.blocks import Plan, tile_plan
from heed.ops.backends.tensorflow.portable.finite import Operands, nan_where
from heed.ops.backends.tensorflow.portable.forward import over_tiles, row_zeros
from heed.ops.backends.tensorflow.portable.loops import State, loop
from heed.ops.backends.tensorflow.portable.tile import BlockAttention
from heed.ops.sizes import Size, is_static

# Its exponential is 0 in every float type, and its product with any sum is finite.
_FAR_BELOW = -1e4


def statistics_of(
    attention: BlockAttention, operands: Operands, chosen: list[int]
) -> list[tf.Tensor]:
    """Entropy and distance (B, K, G, T, 1) and mass (B, K, G, T, number of chosen keys)."""
    widths = (1, 1, len(chosen))
    if is_static(*attention.lengths) and 0 in attention.lengths:
        return [row_zeros(operands, width) for width in widths]
    # With values that are 1 on a chosen key, the output of attention is the mass.
    marks = tf.one_hot(tf.constant(chosen, tf.int32), attention.lengths[1], axis=0)
    marks = tf.cast(marks, operands.query.dtype)[None, None]
    operands = dataclasses.replace(operands, value=marks).guard(attention.mask)
    plan = tile_plan(attention)
    totals = [plan.over_queries(operands.query, 3, width) for width in widths]

    def body(index: Size, state: State) -> State:
        rows = _rows(attention, plan, operands.cut_queries(plan.queries(index)))
        return [x.write(index, row) for x, row in zip(state, rows, strict=True)]

    lists = loop(0, plan.query_blocks, body, [total.start() for total in totals])
    return [total.finish(x) for total, x in zip(totals, lists, strict=True)]


def _rows(attention: BlockAttention, plan: Plan, rows: Operands) -> list[tf.Tensor]:
    """The same for a block of queries, over its blocks of keys.

    With the largest score m so far, the running sums are those of e^(a-m), e^(a-m) (a-m), e^(a-m) times the distance,
    and e^(a-m) times the marks. The entropy is ln(sum e^(a-m)) - sum e^(a-m) (a-m) / sum e^(a-m), in which no large
    numbers cancel.
    """
    dtype, zeros = rows.query.dtype, row_zeros(rows)

    def step(tile: Operands, logits: tf.Tensor, state: State) -> State:
        row_max, row_sum, below, far, mass = state
        new_max = tf.maximum(row_max, tf.reduce_max(logits, -1, keepdims=True))
        drop = tf.maximum(row_max - new_max, _FAR_BELOW)
        shrink = tf.exp(drop)
        logits -= new_max
        # A hidden pair adds 0 to the second sum, not 0 * inf.
        logits = tf.where(logits < _FAR_BELOW, tf.constant(_FAR_BELOW, dtype), logits)
        weights = tf.exp(logits)
        distance = weights * attention.distance(tile)[..., None, :, :]
        return [
            new_max,
            row_sum * shrink + tf.reduce_sum(weights, -1, keepdims=True),
            (below + drop * row_sum) * shrink + tf.reduce_sum(weights * logits, -1, keepdims=True),
            far * shrink + tf.reduce_sum(distance, -1, keepdims=True),
            mass * shrink + _shares(weights, tile.value),
        ]

    mass = row_zeros(rows, rows.value.shape[3])
    state = [zeros + dtype.min, zeros, zeros, zeros, mass]
    state, nonfinite = over_tiles(attention, plan, rows, step, state)
    _, row_sum, below, far, mass = state
    seen = tf.not_equal(row_sum, 0)
    row_sum = tf.where(seen, row_sum, tf.ones((), dtype))
    entropy = tf.math.log(row_sum) - below / row_sum
    statistics = [
        tf.where(seen, x, tf.zeros((), dtype)) for x in (entropy, far / row_sum, mass / row_sum)
    ]
    if nonfinite is None:
        return statistics
    return [nan_where(tf.logical_and(nonfinite, seen), x) for x in statistics]


def _shares(weights: tf.Tensor, marks: tf.Tensor) -> tf.Tensor:
    """Weights (B, K, G, t, s) times the marks of the keys (1, 1, s, n), which all heads share: (B, K, G, t, n).

    A product of two matrices. A batched product would broadcast (B, 1, m, k) against (1, 1, k, n), for which
    TensorFlow's oneDNN kernel gives wrong numbers or writes past its buffers.
    """
    return tf.tensordot(weights, marks[0, 0], 1)
