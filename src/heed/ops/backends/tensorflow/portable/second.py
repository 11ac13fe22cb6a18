"""Second derivatives: the backward pass of a block of queries, differentiated by TensorFlow.

For a small block of queries both passes are written as plain differentiable code over all keys, and two nested tapes
do the rest. Memory stays linear in the sequence lengths; speed is not the aim here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from heed.ops.backends.tensorflow.portable.blocks import small_plan
from heed.ops.backends.tensorflow.portable.finite import Operands, nan_where
from heed.ops.backends.tensorflow.portable.forward import whole_rows
from heed.ops.backends.tensorflow.portable.loops import State, block_list, join, loop
from heed.ops.backends.tensorflow.portable.tile import Attention
from heed.ops.mask_rules import cut
from heed.ops.sizes import Size, Span, sizes, slice_axis

Tensors = Sequence[tf.Tensor]


def second_gradient(
    attention: Attention,
    scores_per_pair: int,
    operands: Tensors,
    bias: Any,
    parameters: Tensors,
    incoming: Tensors,
    cotangents: Tensors,
) -> list[tf.Tensor]:
    """Gradients of sum(cotangents * first derivatives).

    Args:
        operands: query, key and value.
        incoming: gradients of the output and, if it was asked for, of the log-sum-exp.
        cotangents: as many as there are operands, bias and parameters.

    Returns: one gradient for each of operands, bias (if given), parameters and incoming.
    """
    query, key, value = operands
    length, keys = attention.lengths[0], Span(0, attention.lengths[1])
    plan = small_plan(length, keys.length, scores_per_pair)
    has_bias = bias is not None
    per_block_bias = has_bias and bias.shape[2] != 1

    def cut_rows(x: tf.Tensor, queries: Span) -> tf.Tensor:
        return slice_axis(x, 3, *queries)

    def body(index: Size, state: State) -> State:
        queries = plan.queries(index)
        fresh = (queries.positions >= index * plan.query_block)[:, None]
        first = [cut_rows(query, queries), key, value]
        if has_bias:
            first.append(cut(bias, queries, keys))
        first += parameters
        # Rows that the block before has dealt with add nothing, as all is linear in what comes in.
        rows = [tf.where(fresh, cut_rows(x, queries), tf.zeros((), x.dtype)) for x in incoming]
        weights = [cut_rows(cotangents[0], queries), *cotangents[1:]]
        if has_bias:
            weights[3] = cut(weights[3], queries, keys)
        gradients, nonfinite = _differentiate_twice(
            attention, first, has_bias, rows, weights, queries, keys
        )
        if nonfinite is not None:
            gradients[0] = nan_where(nonfinite, gradients[0])
        lists = [state[0].write(index, gradients[0])]
        sums = [a + b for a, b in zip(state[1:3], gradients[1:3], strict=True)]
        rest, following = state[3:], gradients[3:]
        if has_bias:
            total, new = rest.pop(0), following.pop(0)
            sums.append(total.write(index, new) if per_block_bias else total + new)
        count = len(parameters)
        sums += [a + b for a, b in zip(rest[:count], following[:count], strict=True)]
        return [
            *lists,
            *sums,
            *(a.write(index, b) for a, b in zip(rest[count:], following[count:], strict=True)),
        ]

    blocks, dtype = plan.query_blocks, query.dtype
    row_shapes = [[*sizes(x)[:3], plan.query_block, sizes(x)[4]] for x in (query, *incoming)]
    row_lists = [block_list(blocks, shape, dtype) for shape in row_shapes]
    state = [row_lists[0], tf.zeros_like(key), tf.zeros_like(value)]
    if has_bias:
        bias_shape = [*sizes(bias)[:2], plan.query_block, sizes(bias)[3]]
        state.append(
            block_list(blocks, bias_shape, dtype) if per_block_bias else tf.zeros_like(bias)
        )
    state = loop(0, blocks, body, [*state, *(tf.zeros_like(p) for p in parameters), *row_lists[1:]])
    if per_block_bias:
        state[3] = join(state[3], blocks, length, 2, bias_shape)
    for place, shape in zip(
        [0, *range(len(state) - len(incoming), len(state))], row_shapes, strict=True
    ):
        state[place] = join(state[place], blocks, length, 3, shape)
    return state


def _differentiate_twice(
    attention: Attention,
    first: list[tf.Tensor],
    has_bias: bool,
    incoming: list[tf.Tensor],
    cotangents: list[tf.Tensor],
    queries: Span,
    keys: Span,
) -> tuple[list[tf.Tensor], tf.Tensor | None]:
    with tf.GradientTape() as outer:
        outer.watch([*first, *incoming])
        with tf.GradientTape() as inner:
            inner.watch(first)
            operands = Operands.of(*first[:3], guarded=attention.mask is not None)
            operands = operands.cut_queries(Span(0, queries.length)).cut_keys(keys)
            bias, parameters = (first[3], first[4:]) if has_bias else (None, first[3:])
            rows = whole_rows(
                attention, operands, bias, parameters, queries, keys, len(incoming) > 1
            )
            outputs = rows.finished()
        gradients = inner.gradient(outputs, first, incoming, unconnected_gradients="zero")
    result = outer.gradient(
        gradients, [*first, *incoming], cotangents, unconnected_gradients="zero"
    )
    nonfinite = None if rows.nonfinite is None else tf.logical_and(rows.nonfinite, rows.seen)
    return result, nonfinite
