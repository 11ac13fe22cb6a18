"""The attention weights, for all or chosen heads, rows and keys, in `keras.ops`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from heed.ops import checks
from heed.ops.backends.shared.block import BlockAttention
from heed.ops.backends.shared.operands import Block, Marks, Operands, fill
from heed.ops.sizes import Span, is_static, sizes, slice_axis
from heed.ops.spec import AttentionSpec


def weights_of(
    attention: BlockAttention,
    operands: Operands,
    spec: AttentionSpec,
    *,
    heads: Sequence[int] | None,
    rows: Sequence[int] | None,
    keys: Sequence[int] | None,
    lse: Any,
) -> Any:
    """Return the weights of an attention; see `Implementation.weights`."""
    length, key_length = attention.lengths[0], spec.lengths[1]
    key_length = attention.lengths[1] if key_length is None else key_length
    heads = checks.check_indices("heads", heads, spec.heads[0])
    rows = checks.check_indices("rows", rows, length)
    keys = checks.check_indices("keys", keys, key_length)
    if lse is not None:
        lse = ops.reshape(lse, (*sizes(operands.query)[:4], 1))
    # Without the log-sum-exp a block holds whole rows, and its keys are picked afterwards.
    key_runs = runs(keys if lse is not None else None, attention.lengths[1])
    whole = attention.whole(operands._replace(value=None), guarded=True)
    parts = []
    for queries in runs(rows, length):
        rows_lse = None if lse is None else slice_axis(lse, 3, *queries)
        across = [_weights(attention, whole.cut(queries, run), heads, rows_lse) for run in key_runs]
        parts.append(ops.concatenate(across, 3) if len(across) != 1 else across[0])
    weights = ops.concatenate(parts, 2) if len(parts) != 1 else parts[0]
    if keys is not None and lse is None:
        weights = take(weights, keys, 3)
    return weights[..., :0] if is_static(key_length) and key_length == 0 else weights


def runs(chosen: Sequence[int] | None, length: Any) -> list[Span]:
    """Return chosen positions as spans of consecutive ones: one span of all for None, an empty one for none."""
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
    """Return chosen entries along an axis; an empty list is one of integers, too."""
    return ops.take(x, ops.convert_to_tensor(list(indices), "int32"), axis=axis)


def _weights(attention: BlockAttention, block: Block, heads: Sequence[int] | None, lse: Any) -> Any:
    """Return weights (B, N or len(heads), t, s) of a block: of whole rows, unless `lse` is given."""
    visible = attention.visible(block)
    addend = attention.addend(block, visible)
    keep = attention.keep_factor(block)
    if heads is not None:
        # Only the scores of the chosen heads are computed, each with a copy of its key head.
        block = _pick_heads(block, heads)
        visible, addend, keep, lse = (
            _pick(x, heads, attention.heads) for x in (visible, addend, keep, lse)
        )
    batch, kv_heads, queries_per_kv, rows, _ = sizes(block.operands.query)
    shape = (batch, kv_heads * queries_per_kv, rows, block.keys.length)
    if 0 in [n for n in shape if is_static(n)]:
        return ops.zeros(shape, block.operands.query.dtype)
    logits, seen = attention.logits(attention.scores(block, visible), addend)
    weights = (
        attention.arithmetic.softmax(logits, False)[0] if lse is None else ops.exp(logits - lse)
    )
    if keep is not None:
        weights = weights * keep
    weights = fill(attention.nonfinite_rows(block, visible), weights, math.nan)
    for shown in (visible, seen):
        if shown is not None:
            weights = fill(~shown, weights, 0.0)
    return ops.reshape(weights, shape)


def _pick_heads(block: Block, heads: Sequence[int]) -> Block:
    """Return the block of chosen query heads, each with a key head of its own."""
    kv_heads = [head // block.heads[1] for head in heads]
    operands, marks = block.operands, block.marks
    return dataclasses.replace(
        block,
        operands=operands._replace(
            query=_pick(operands.query, heads, block.heads), key=take(operands.key, kv_heads, 1)
        ),
        marks=marks and Marks(_pick(marks.query, heads, block.heads), take(marks.key, kv_heads, 1)),
        heads=(len(heads), 1),
        head_numbers=tuple(heads),
    )


def _pick(x: Any, heads: Sequence[int], split: tuple[int, int]) -> Any:
    """Return chosen heads of (B, K or 1, G or 1, t, s) as (B, len(heads), 1, t, s); unchanged without heads."""
    if x is None or (x.shape[1] == 1 and x.shape[2] == 1 and split != (1, 1)):
        return x
    batch, _, _, rows, columns = sizes(x)
    flat = ops.reshape(x, (batch, split[0] * split[1], rows, columns))
    return take(flat, heads, 1)[:, :, None]
