"""The attention weights, for all or chosen heads, rows and keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from heed.ops.backends.tensorflow.portable.finite import (
    Operands,
    has_nonfinite,
    nan_where,
    sees,
    zero_nonfinite,
)
from heed.ops.backends.tensorflow.portable.tile import BlockAttention, finite_rows, seen_rows
from heed.ops.sizes import Span, size, sizes, slice_axis


def weights_of(
    attention: BlockAttention,
    operands: Operands,
    *,
    heads: Sequence[int] | None,
    rows: Sequence[int] | None,
    keys: Sequence[int] | None,
    lse: tf.Tensor | None,
) -> tf.Tensor:
    """Weights (B, N or len(heads), T or len(rows), S or len(keys)).

    Args:
        heads, rows, keys: checked, or None for all.
        lse: (B, N, T) of the whole rows, or None to compute them.
    """
    if lse is not None:
        lse = tf.reshape(lse, tf.stack([*sizes(operands.query)[:4], 1]))
    # Without the log-sum-exp a block holds whole rows, and its keys are picked afterwards.
    apart, length = keys if lse is not None else None, attention.lengths[1]

    def blocks(queries: Span) -> tf.Tensor:
        some = operands.cut_queries(queries)
        rows_lse = None if lse is None else slice_axis(lse, 3, *queries)
        return _over_runs(
            apart, length, 3, lambda run: _block(attention, some.cut_keys(run), heads, rows_lse)
        )

    weights = _over_runs(rows, attention.lengths[0], 2, blocks)
    if keys is None or apart is not None:
        return weights
    return tf.gather(weights, _int32(keys), axis=3)


def _over_runs(
    chosen: Sequence[int] | None, length: Any, axis: int, block: Callable[[Span], tf.Tensor]
) -> tf.Tensor:
    """The blocks of all chosen positions (None for all) side by side along `axis`."""
    if chosen is None:
        return block(Span(0, length))
    if not chosen:
        return slice_axis(block(Span(0, length)), axis, 0, 0)
    return tf.concat([block(run) for run in _runs(chosen)], axis)


def _block(
    attention: BlockAttention, block: Operands, heads: Sequence[int] | None, lse: tf.Tensor | None
) -> tf.Tensor:
    """Weights (B, N or len(heads), t, s) of a block of queries and keys: of whole rows, unless `lse` is given."""
    visible = attention.visible(block)
    addend = attention.addend(block, visible)
    keep = attention.keep_factor(block)
    query, key = block.query, block.key
    if heads is not None:
        # Only the scores of the chosen heads are computed, each with a copy of its key head.
        query = _pick(query, heads, attention.heads)
        key = tf.gather(key, _int32([head // attention.heads[1] for head in heads]), axis=1)
        visible, addend, keep, lse = (
            _pick(x, heads, attention.heads) for x in (visible, addend, keep, lse)
        )
    seen = seen_rows(addend)
    safe = dataclasses.replace(block, query=zero_nonfinite(query), key=zero_nonfinite(key))
    logits = attention.logits(safe, finite_rows(addend, seen))
    weights = tf.nn.softmax(logits) if lse is None else tf.exp(logits - lse)
    if keep is not None:
        weights *= keep
    nonfinite = has_nonfinite(query) > 0
    if visible is None:
        nonfinite = tf.logical_or(
            nonfinite, tf.reduce_any(has_nonfinite(key) > 0, axis=2, keepdims=True)[:, :, None]
        )
        weights = nan_where(nonfinite, weights)
    else:
        nonfinite = tf.logical_or(nonfinite, sees(visible, has_nonfinite(key)))
        weights = tf.where(visible, nan_where(nonfinite, weights), tf.zeros((), query.dtype))
    if seen is not None:
        weights = tf.where(seen, weights, tf.zeros((), query.dtype))
    batch, kv_heads, queries_per_kv, rows, columns = (size(weights, axis) for axis in range(5))
    return tf.reshape(weights, tf.stack([batch, kv_heads * queries_per_kv, rows, columns]))


def _pick(x: tf.Tensor | None, heads: Sequence[int], split: tuple[int, int]) -> tf.Tensor | None:
    """Chosen heads of (B, K or 1, G or 1, t, s) as (B, len(heads), 1, t, s); unchanged without heads."""
    if x is None or (x.shape[1] == 1 and x.shape[2] == 1 and split != (1, 1)):
        return x
    batch, _, _, rows, columns = (size(x, axis) for axis in range(5))
    flat = tf.reshape(x, tf.stack([batch, split[0] * split[1], rows, columns]))
    return tf.gather(flat, _int32(heads), axis=1)[:, :, None]


def _int32(indices: Sequence[int]) -> tf.Tensor:
    # An empty list would become a float tensor.
    return tf.constant(indices, tf.int32)


def _runs(rows: Sequence[int]) -> list[Span]:
    """Consecutive rows become one span."""
    runs: list[Span] = []
    for row in rows:
        if runs and row == runs[-1].end:
            runs[-1] = Span(runs[-1].begin, runs[-1].length + 1)
        else:
            runs.append(Span(row, 1))
    return runs
