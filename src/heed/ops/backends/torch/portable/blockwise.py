"""Attention in plain PyTorch with linear memory: forward, backward and second derivatives, block by block.

Memory traffic: each block of queries is read once, and for it all visible keys and values; its scores exist only while
the block is processed. Both derivatives recompute the scores, and PyTorch differentiates one block at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from heed.ops.backends.shared.block import BlockAttention, Operands, Rows, fill, keys_of_rows
from heed.ops.sizes import Span

# Scores in memory at a time, for all heads and batch entries: 2^23 take 32 MiB in float32.
_SCORES = 2**23
_MOST_QUERIES = 256

Tensors = Sequence[torch.Tensor | None]


def blockwise(attention: BlockAttention, operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (B, K, G, T, V) and log-sum-exp (B, K, G, T, 1), differentiable twice."""
    return _Attention.apply(attention, *operands)


def spans(attention: BlockAttention, share: int = 1) -> Iterator[tuple[Span, Span]]:
    """Blocks of queries, each with the range of keys that it may see, at least one.

    Args:
        attention: the attention.
        share: makes blocks smaller that hold this many tensors of the size of their scores.
    """
    length = attention.lengths[0] if attention.scores_per_pair else 0
    room = max(1, _SCORES // max(1, share * attention.scores_per_pair))
    begin = 0
    while begin < length:
        block = Span(begin, min(_MOST_QUERIES, length - begin))
        visible = _visible_keys(attention, block)
        if block.length * visible.length > room:
            block = Span(begin, max(1, min(block.length, room // max(1, visible.length))))
            visible = _visible_keys(attention, block)
        yield block, visible
        begin = block.end


def _visible_keys(attention: BlockAttention, queries: Span) -> Span:
    length = attention.lengths[1]
    if attention.mask is None:
        return Span(0, length)
    lo, hi = map(int, attention.mask.key_range(queries, *attention.lengths))
    return Span(lo, hi - lo) if hi > lo else Span(0, 1)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(attention: BlockAttention, *tensors: Any) -> tuple[torch.Tensor, torch.Tensor]:
        operands = Operands(*tensors)
        shape, width = operands.query.shape[:4], operands.value.shape[3]
        output = operands.query.new_empty((*shape, width))
        lse = operands.query.new_empty((*shape, 1))
        for queries, keys in spans(attention):
            rows = attention.attend(operands.cut(queries, keys), queries, keys)
            output[:, :, :, queries.begin : queries.end] = rows.output
            lse[:, :, :, queries.begin : queries.end] = rows.lse
        return output, lse

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.attention = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> Any:
        return None, *_Gradient.apply(ctx.attention, *ctx.saved_tensors, *incoming)


class _Gradient(torch.autograd.Function):
    """Gradients of the operands: a function of them and of the incoming gradients of output and log-sum-exp."""

    @staticmethod
    def forward(attention: BlockAttention, *tensors: Any) -> Tensors:
        operands, incoming = Operands(*tensors[:5]), tensors[5:]
        totals = [None if x is None else torch.zeros_like(x) for x in operands]
        for queries, keys in spans(attention, 4):
            _add_block(attention, operands, incoming, (queries, keys), totals)
        return tuple(totals)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.attention = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        attention, tensors = ctx.attention, ctx.saved_tensors
        totals = [None if x is None else torch.zeros_like(x) for x in tensors]
        for block in spans(attention, 12):
            _add_second(attention, tensors, cotangents, block, totals)
        return None, *totals


def _view(x: torch.Tensor | None, place: int, block: tuple[Span, Span]) -> Any:
    """The part of an operand (by its place, or of an incoming gradient) that a block reads."""
    if x is None:
        return None
    queries, keys = (slice(span.begin, span.end) for span in block)
    if place in (1, 2):
        return x[:, :, keys]
    if place == 3:
        return x[
            :,
            :,
            queries if x.shape[2] != 1 else slice(None),
            keys if x.shape[3] != 1 else slice(None),
        ]
    return x if place == 4 else x[:, :, :, queries]


def _leaves(tensors: Tensors, block: tuple[Span, Span]) -> list[torch.Tensor | None]:
    """The parts of the tensors as leaves of a graph of their own."""
    cut = (_view(x, place, block) for place, x in enumerate(tensors))
    return [None if x is None else x.detach().requires_grad_() for x in cut]


def _differentiate(
    attention: BlockAttention,
    leaves: Tensors,
    incoming: Sequence[torch.Tensor],
    block: tuple[Span, Span],
    twice: bool,
) -> tuple[list[torch.Tensor | None], Rows, torch.Tensor | None]:
    """The gradients of a block, its results, and the rows (B, K, G, t, 1) that hold or receive nonfinite numbers."""
    rows = attention.attend(Operands(*leaves), *block)
    output, lse = incoming
    bad = rows.nonfinite
    if bad is not None:
        wrong = ~(torch.isfinite(output).all(-1, keepdim=True) & torch.isfinite(lse))
        if rows.visible is not None:
            wrong = wrong & rows.visible.any(-1, keepdim=True)
        bad = bad | wrong
        output, lse = fill(bad, output, 0.0), fill(bad, lse, 0.0)
    gradients = _gradients([rows.output, rows.lse], leaves, [output, lse], create_graph=twice)
    return gradients, rows, bad


def _gradients(
    results: Tensors, leaves: Tensors, incoming: Tensors, create_graph: bool
) -> list[torch.Tensor | None]:
    present = [x for x in leaves if x is not None]
    found = iter(
        torch.autograd.grad(
            results, present, incoming, create_graph=create_graph, materialize_grads=True
        )
    )
    return [None if x is None else next(found) for x in leaves]


def _add_block(
    attention: BlockAttention,
    operands: Operands,
    incoming: Sequence[torch.Tensor],
    block: tuple[Span, Span],
    totals: list[torch.Tensor | None],
) -> None:
    """Adds the gradients of a block to those of the operands."""
    with torch.enable_grad():
        leaves = _leaves(operands, block)
        rows_incoming = [_view(x, 5, block) for x in incoming]
        gradients, rows, bad = _differentiate(attention, leaves, rows_incoming, block, False)
    if bad is not None:
        gradients[0] = fill(bad, gradients[0], torch.nan)
        hit = keys_of_rows(rows.visible, bad)
        gradients[1], gradients[2] = (fill(hit, x, torch.nan) for x in gradients[1:3])
    for place, (total, gradient) in enumerate(zip(totals, gradients, strict=True)):
        if total is not None:
            _view(total, place, block).add_(gradient)


def _add_second(
    attention: BlockAttention,
    tensors: Tensors,
    cotangents: Tensors,
    block: tuple[Span, Span],
    totals: list[torch.Tensor | None],
) -> None:
    """Adds the gradients of sum(cotangents * first derivatives) of a block."""
    with torch.enable_grad():
        leaves = _leaves(tensors, block)
        gradients, _, bad = _differentiate(attention, leaves[:5], leaves[5:], block, True)
        weights = [
            _view(torch.zeros_like(tensors[place]) if x is None else x, place, block)
            for place, x in enumerate(cotangents)
            if tensors[place] is not None
        ]
        results = [x for x in gradients if x is not None]
        second = _gradients(results, leaves, weights, create_graph=False)
    if bad is not None:
        second[0] = fill(bad, second[0], torch.nan)
    for place, (total, gradient) in enumerate(zip(totals, second, strict=True)):
        if total is not None:
            _view(total, place, block).add_(gradient)
