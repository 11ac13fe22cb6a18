"""Second derivatives, by nested gradient tapes over small blocks of queries and all keys.

Memory stays linear in the sequence lengths; speed is not the aim.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from heed.ops.backends.tensorflow.portable import loops
from heed.ops.backends.tensorflow.portable.blocks import small_plan
from heed.ops.backends.tensorflow.portable.finite import Operands, nan_where
from heed.ops.backends.tensorflow.portable.forward import whole_rows
from heed.ops.backends.tensorflow.portable.tile import BlockAttention
from heed.ops.sizes import Size, Span, slice_axis

Tensors = Sequence[tf.Tensor]


def second_gradient(
    attention: BlockAttention, operands: Operands, incoming: Tensors, cotangents: Tensors
) -> list[tf.Tensor]:
    """Gradients of sum(cotangents * first derivatives).

    Args:
        incoming: gradients of the output and, if requested, of the log-sum-exp.
        cotangents: one for each of the operands' tensors.

    Returns: one gradient for each of the operands' tensors and of incoming.
    """
    plan = small_plan(attention)
    totals = plan.gradients(operands)
    for name, x in zip(("output", "lse"), incoming, strict=False):
        totals[name] = plan.over_queries(x, 3)

    def cut(whole: Operands, queries: Span) -> Operands:
        return whole.cut_queries(queries).cut_keys(Span(0, plan.key_length))

    def body(index: Size, state: loops.State) -> loops.State:
        queries = plan.queries(index)
        fresh = (queries.positions >= index * plan.query_block)[:, None]
        # Rows of the previous block get 0: the result is linear in the incoming gradients.
        rows = [
            tf.where(fresh, slice_axis(x, 3, *queries), tf.zeros((), x.dtype)) for x in incoming
        ]
        weights = cut(operands.with_tensors(cotangents), queries)
        gradients = _differentiate_twice(attention, cut(operands, queries), rows, weights)
        return loops.add(totals, state, index, dict(zip(totals, gradients, strict=True)))

    state = loops.loop(0, plan.query_blocks, body, loops.start(totals))
    return list(loops.finish(totals, state).values())


def _differentiate_twice(
    attention: BlockAttention, block: Operands, incoming: Tensors, cotangents: Operands
) -> list[tf.Tensor]:
    first = list(block.tensors.values())
    with tf.GradientTape() as outer:
        outer.watch([*first, *incoming])
        with tf.GradientTape() as inner:
            inner.watch(first)
            safe = block.guard(attention.mask).finite("query", "key", "value")
            rows = whole_rows(attention, safe, len(incoming) > 1)
            outputs = rows.finish()
        gradients = inner.gradient(outputs, first, incoming, unconnected_gradients="zero")
    weights = list(cotangents.tensors.values())
    result = outer.gradient(gradients, [*first, *incoming], weights, unconnected_gradients="zero")
    if rows.nonfinite is not None:
        result[0] = nan_where(tf.logical_and(rows.nonfinite, rows.seen), result[0])
    return result
