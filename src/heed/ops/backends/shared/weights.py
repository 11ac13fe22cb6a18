"""The attention weights, for all or chosen heads, rows and keys, in `keras.ops`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from heed.ops import checks
from heed.ops.backends.shared.block import (
    BlockAttention,
    KeepMask,
    Operands,
    fill,
    finite_rows,
    has_nonfinite,
    prepare,
    seen_rows,
    softmax,
    zero_nonfinite,
)
from heed.ops.sizes import Span, sizes, slice_axis
from heed.ops.spec import AttentionSpec, Tensors


def weights_of(
    spec: AttentionSpec,
    tensors: Tensors,
    keep_mask: KeepMask,
    *,
    heads: Sequence[int] | None,
    rows: Sequence[int] | None,
    keys: Sequence[int] | None,
    lse: Any,
) -> Any:
    """See `Implementation.weights`; `keep_mask` is the backend's dropout."""
    length, key_length = spec.lengths
    if lse is not None:
        lse = checks.check_lse(lse, [spec.batch, spec.heads[0], length], spec.dtype)
    heads = checks.check_indices("heads", heads, spec.heads[0])
    rows = checks.check_indices("rows", rows, length)
    keys = checks.check_indices("keys", keys, key_length)
    attention, operands = prepare(spec, tensors, keep_mask)
    if lse is not None:
        lse = ops.reshape(lse, (*sizes(operands.query)[:4], 1))
    # Without the log-sum-exp a block holds whole rows, and its keys are picked afterwards.
    key_runs = runs(keys if lse is not None else None, attention.lengths[1])
    parts = []
    for queries in runs(rows, length):
        rows_lse = None if lse is None else slice_axis(lse, 3, *queries)
        across = [_block(attention, operands, queries, run, heads, rows_lse) for run in key_runs]
        parts.append(ops.concatenate(across, 3) if len(across) != 1 else across[0])
    weights = ops.concatenate(parts, 2) if len(parts) != 1 else parts[0]
    if keys is not None and lse is None:
        weights = take(weights, keys, 3)
    return weights if key_length else weights[..., :0]


def runs(chosen: Sequence[int] | None, length: Any) -> list[Span]:
    """Chosen positions as spans of consecutive ones: one span of all for None, an empty one for none."""
    if chosen is None:
        return [Span(0, length)]
    found: list[Span] = []
    for position in chosen:
        if found and position == found[-1].end:
            found[-1] = Span(found[-1].begin, found[-1].length + 1)
        else:
            found.append(Span(position, 1))
    return found or [Span(0, 0)]


def take(x: Any, indices: Sequence[int], axis: int) -> Any:
    """Chosen entries along an axis; an empty list is one of integers, too."""
    return ops.take(x, ops.convert_to_tensor(list(indices), "int32"), axis=axis)


def _block(
    attention: BlockAttention,
    operands: Operands,
    queries: Span,
    keys: Span,
    heads: Sequence[int] | None,
    lse: Any,
) -> Any:
    """Weights (B, N or len(heads), t, s) of a block of queries and keys: of whole rows, unless `lse` is given."""
    block = operands.cut(queries, keys)
    visible = attention.visible(queries, keys)
    addend = attention.addend(block, visible, queries, keys)
    keep = attention.keep_factor(block, queries, keys)
    query, key, split = block.query, block.key, attention.heads
    if heads is not None:
        # Only the scores of the chosen heads are computed, each with a copy of its key head.
        query = _pick(query, heads, split)
        key = take(key, [head // split[1] for head in heads], 1)
        visible, addend, keep, lse = (_pick(x, heads, split) for x in (visible, addend, keep, lse))
    if 0 in (query.shape[0], query.shape[1], queries.length, keys.length):
        batch, kv_heads, queries_per_kv, rows, _ = sizes(query)
        return ops.zeros((batch, kv_heads * queries_per_kv, rows, keys.length), query.dtype)
    seen = seen_rows(addend)
    safe = block._replace(query=zero_nonfinite(query), key=zero_nonfinite(key))
    logits = attention.logits(safe, finite_rows(addend, seen))
    weights = softmax(logits)[0] if lse is None else ops.exp(logits - lse)
    if keep is not None:
        weights = weights * keep
    wrong = ops.swapaxes(has_nonfinite(key), 2, 3)[:, :, None]
    if visible is not None:
        wrong = ops.logical_and(visible, wrong)
    nonfinite = ops.logical_or(has_nonfinite(query), ops.any(wrong, axis=-1, keepdims=True))
    weights = fill(nonfinite, weights, math.nan)
    for shown in (visible, seen):
        if shown is not None:
            weights = fill(~shown, weights, 0.0)
    batch, kv_heads, queries_per_kv, rows, columns = sizes(weights)
    return ops.reshape(weights, (batch, kv_heads * queries_per_kv, rows, columns))


def _pick(x: Any, heads: Sequence[int], split: tuple[int, int]) -> Any:
    """Chosen heads of (B, K or 1, G or 1, t, s) as (B, len(heads), 1, t, s); unchanged without heads."""
    if x is None or (x.shape[1] == 1 and x.shape[2] == 1 and split != (1, 1)):
        return x
    batch, _, _, rows, columns = sizes(x)
    flat = ops.reshape(x, (batch, split[0] * split[1], rows, columns))
    return take(flat, heads, 1)[:, :, None]
