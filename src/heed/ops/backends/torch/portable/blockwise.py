"""Attention in plain PyTorch with linear memory: forward, backward and second derivatives, block by block.

Memory traffic: each block of queries is read once, and for it all visible keys and values; its scores exist only while
the block is processed. Both derivatives recompute the scores, and PyTorch differentiates one block at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from heed.ops.backends.shared.block import (
    BlockAttention,
    Operands,
    Rows,
    fill,
    join,
    keys_of_rows,
    prepare,
)
from heed.ops.backends.torch.operands import has_values
from heed.ops.backends.torch.portable.dropout import keep_mask
from heed.ops.sizes import Span
from heed.ops.spec import AttentionSpec, Tensors

# Scores in memory at a time, for all heads and batch entries: 2^23 take 32 MiB in float32.
_SCORES = 2**23
_MOST_QUERIES = 256

Several = Sequence[torch.Tensor | None]
# The operands with gradients, as in `Operands`.
_TRAINED = ("query", "key", "value", "bias", "score_vector")


def forward(spec: AttentionSpec, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output and log-sum-exp."""
    attention, operands = prepare(spec, tensors, keep_mask)
    shape, width = operands.query.shape[:4], operands.value.shape[3]
    output = operands.query.new_empty((*shape, width))
    lse = operands.query.new_empty((*shape, 1))
    for queries, keys in spans(attention):
        rows = attention.attend(operands.cut(queries, keys), queries, keys)
        output[:, :, :, queries.begin : queries.end] = rows.output
        lse[:, :, :, queries.begin : queries.end] = rows.lse
    return join(spec, tensors, output, lse)


def gradients(spec: AttentionSpec, tensors: Tensors, incoming: Several) -> list[Any]:
    """Return the gradients of query, key, value, bias and score vector, from those of output and log-sum-exp."""
    return _through_prepare(
        spec, tensors, lambda attention, operands: _first(attention, operands, incoming, spec)
    )


def second(
    spec: AttentionSpec, tensors: Tensors, incoming: Several, cotangents: Several
) -> list[Any]:
    """Return the gradients of sum(cotangents * first derivatives).

    Args:
        spec, tensors: the attention.
        incoming: gradients of output and log-sum-exp; None for 0.
        cotangents: of the gradients of query, key, value, bias and score vector; None for 0.

    Returns: one for each of these operands and of `incoming`, None where that is None.
    """
    of_incoming: list[Any] = []

    def compute(attention: BlockAttention, operands: Operands) -> list[Any]:
        totals = _second(attention, operands, incoming, cotangents, spec, tensors)
        of_incoming[:] = totals[5:]
        return totals[:5]

    of_operands = _through_prepare(spec, tensors, compute)
    of_results = join(spec, tensors, *of_incoming)
    return of_operands + [
        None if x is None else y for x, y in zip(incoming, of_results, strict=True)
    ]


def tangent(spec: AttentionSpec, tensors: Tensors, tangents: Several) -> list[torch.Tensor]:
    """Return the tangents of output and log-sum-exp, from those of query, key, value, bias and score vector.

    The gradients are linear in those of the results, and the tangents are their derivatives with respect to these.
    """
    attention, operands = prepare(spec, tensors, keep_mask)
    inputs = [*operands, *_rows_of(spec, operands, (None, None))]
    weights = _directions(spec, tensors, tangents)
    parts = [
        _second_of_block(attention, inputs, weights, block, [5, 6])
        for block in spans(attention, 12)
    ]
    # Side by side rather than into one tensor: `torch.func.linearize` would keep that for all calls.
    rows = [torch.cat(blocks, 3) for blocks in zip(*parts, strict=True)] if parts else inputs[5:]
    return list(join(spec, tensors, *rows))


class _Kernel:
    """See `derivatives.Kernel`. The backward pass computes all it needs again."""

    def forward(self, spec: AttentionSpec, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        output, lse = forward(spec, tensors)
        return output, lse, lse.new_empty(0)

    def backward(
        self,
        spec: AttentionSpec,
        tensors: Tensors,
        output: Any,
        statistics: Any,
        incoming: Several,
        bias_wanted: bool,
    ) -> list[Any]:
        return gradients(spec, tensors, incoming)


KERNEL: Any = _Kernel()


def _through_prepare(
    spec: AttentionSpec,
    tensors: Tensors,
    compute: Callable[[BlockAttention, Operands], Several],
) -> list[Any]:
    """The gradients of the trained operands, where `compute` gives those of the operands in the shapes of a block."""
    with torch.enable_grad():
        leaves = {
            name: x.detach().requires_grad_()
            for name in _TRAINED
            if (x := getattr(tensors, name)) is not None
        }
        attention, operands = prepare(spec, tensors._replace(**leaves), keep_mask)
    with torch.no_grad():
        totals = compute(attention, operands)
    pairs = [(x, y) for x, y in zip(operands, totals, strict=True) if x is not None]
    inner, incoming = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(inner, list(leaves.values()), incoming, materialize_grads=True))
    return [next(found) if name in leaves else None for name in _TRAINED]


def _rows_of(spec: AttentionSpec, operands: Operands, incoming: Several) -> list[torch.Tensor]:
    """Gradients of output and log-sum-exp in the shapes of a block: (B, K, G, T, V) and (B, K, G, T, 1)."""
    query = operands.query
    shape = query.shape[:4]
    output, lse = incoming
    if output is None:
        output = query.new_zeros((*shape, operands.value.shape[3]))
    else:
        output = output.to(query.dtype)
        output = output.transpose(1, 2) if spec.heads_axis == 2 else output
        output = output.reshape(*shape, operands.value.shape[3])
    lse = query.new_zeros((*shape, 1)) if lse is None else lse.to(query.dtype).reshape(*shape, 1)
    return [output, lse]


def _first(
    attention: BlockAttention, operands: Operands, incoming: Several, spec: AttentionSpec
) -> list[torch.Tensor | None]:
    totals = [None if x is None else torch.zeros_like(x) for x in operands]
    rows = _rows_of(spec, operands, incoming)
    for block in spans(attention, 4):
        _add_block(attention, operands, rows, block, totals)
    return totals


def _second(
    attention: BlockAttention,
    operands: Operands,
    incoming: Several,
    cotangents: Several,
    spec: AttentionSpec,
    tensors: Tensors,
) -> list[torch.Tensor | None]:
    """The same as `second` in the shapes of a block."""
    weights = _directions(spec, tensors, cotangents)
    inputs = [*operands, *_rows_of(spec, operands, incoming)]
    totals = [None if x is None else torch.zeros_like(x) for x in inputs]
    wanted = [place for place, x in enumerate(inputs) if x is not None]
    for block in spans(attention, 12):
        found = _second_of_block(attention, inputs, weights, block, wanted)
        for place, x in zip(wanted, found, strict=True):
            _view(totals[place], place, block).add_(x)
    return totals


def _directions(spec: AttentionSpec, tensors: Tensors, given: Several) -> Operands:
    """Directions of query, key, value, bias and score vector (None for 0) in the shapes of a block."""
    whole = {
        name: torch.zeros_like(x) if y is None else y
        for name, y in zip(_TRAINED, given, strict=True)
        if (x := getattr(tensors, name)) is not None
    }
    # What `prepare` does to the operands is linear.
    return prepare(spec, tensors._replace(**whole), keep_mask)[1]


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
    ends = attention.mask.key_range(queries, *attention.lengths)
    if not all(map(has_values, ends)):
        return Span(0, length)
    lo, hi = map(int, ends)
    return Span(lo, hi - lo) if hi > lo else Span(0, 1)


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


def _leaves(tensors: Several, block: tuple[Span, Span]) -> list[torch.Tensor | None]:
    """The parts of the tensors as leaves of a graph of their own."""
    cut = (_view(x, place, block) for place, x in enumerate(tensors))
    return [None if x is None else x.detach().requires_grad_() for x in cut]


def _differentiate(
    attention: BlockAttention,
    leaves: Several,
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
    results: Several, leaves: Several, incoming: Several, create_graph: bool
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


def _second_of_block(
    attention: BlockAttention,
    tensors: Several,
    cotangents: Operands,
    block: tuple[Span, Span],
    wanted: Sequence[int],
) -> list[Any]:
    """The gradients of sum(cotangents * first derivatives) of a block, for tensors in the wanted places."""
    with torch.enable_grad():
        leaves = _leaves(tensors, block)
        gradients, _, bad = _differentiate(attention, leaves[:5], leaves[5:], block, True)
        pairs = [
            (x, _view(weight, place, block))
            for place, (x, weight) in enumerate(zip(gradients, cotangents, strict=True))
            if x is not None
        ]
        results, weights = zip(*pairs, strict=True)
        found = _gradients(results, [leaves[place] for place in wanted], weights, False)
    # Rows of queries, or of results: a tangent of NaN is one.
    return [
        fill(bad, x, torch.nan) if bad is not None and place in (0, 5, 6) else x
        for place, x in zip(wanted, found, strict=True)
    ]
