"""Attention in plain PyTorch with linear memory: forward, backward and second derivatives, block by block.

Memory traffic: each block of queries is read once, and for it all visible keys and values; its scores exist only while
the block is processed. Both derivatives recompute the scores, and PyTorch differentiates one block at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from heed.ops.backends.shared import plan
from heed.ops.backends.shared.block import BlockAttention, by_key_heads, join, prepare
from heed.ops.backends.shared.operands import Block, Operands, fill
from heed.ops.backends.torch.operands import has_values
from heed.ops.sizes import Span
from heed.ops.spec import AttentionSpec, Tensors

Several = Sequence[torch.Tensor | None]
# The operands with gradients, as in `Operands`; those of the score come after them.
_TRAINED = ("query", "key", "value", "bias", "score_vector")


def forward(spec: AttentionSpec, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output and log-sum-exp."""
    attention, operands = prepare(spec, tensors)
    shape, width = operands.query.shape[:4], operands.value.shape[3]
    output = operands.query.new_empty((*shape, width))
    lse = operands.query.new_empty((*shape, 1))
    whole = attention.whole(operands)
    for queries, keys in blocks_of(attention):
        rows = attention.attend(whole.cut(queries, keys))
        output[:, :, :, queries.begin : queries.end] = rows.output
        lse[:, :, :, queries.begin : queries.end] = rows.lse
    return join(spec, tensors, output, lse)


def gradients(spec: AttentionSpec, tensors: Tensors, incoming: Several) -> list[Any]:
    """Return the gradients of query, key, value, bias, score vector and what else the score has, from the results'."""

    def compute(attention: BlockAttention, operands: Operands) -> Several:
        whole = attention.whole(operands)
        totals = [None if x is None else torch.zeros_like(x) for x in operands.flat()]
        rows = _rows_of(spec, operands, incoming)
        for queries, keys in blocks_of(attention, 4):
            block = whole.cut(queries, keys)
            with torch.enable_grad():
                leaves = [_leaf(x) for x in block.operands.flat()]
                leaves += [_view(x, "query", block) for x in rows]
                found, visible, bad = _differentiate(attention, block, leaves, False)
            marked = attention.mark_gradients(found, visible, bad)
            for place, (total, gradient) in enumerate(zip(totals, marked, strict=True)):
                if total is not None:
                    _view(total, _kind(place, leaves), block).add_(gradient)
        return totals

    return _through_prepare(spec, tensors, compute)


def second(
    spec: AttentionSpec, tensors: Tensors, incoming: Several, cotangents: Several
) -> list[Any]:
    """Return the gradients of sum(cotangents * first derivatives).

    Args:
        spec, tensors: the attention.
        incoming: gradients of output and log-sum-exp; None for 0.
        cotangents: of what `gradients` returns; None for 0.

    Returns: one for each of these operands and of `incoming`, None where that is None.
    """
    of_incoming: list[Any] = []

    def compute(attention: BlockAttention, operands: Operands) -> Several:
        weights = _directions(spec, tensors, cotangents)
        whole = attention.whole(operands)
        inputs = [*whole.operands.flat(), *_rows_of(spec, operands, incoming)]
        totals = [None if x is None else torch.zeros_like(x) for x in inputs]
        wanted = [place for place, x in enumerate(inputs) if x is not None]
        for queries, keys in blocks_of(attention, 12):
            block = whole.cut(queries, keys)
            found = _second_of_block(attention, block, inputs, weights, wanted)
            for place, x in zip(wanted, found, strict=True):
                _view(totals[place], _kind(place, inputs), block).add_(x)
        of_incoming[:] = totals[-2:]
        return totals[:-2]

    of_operands = _through_prepare(spec, tensors, compute)
    of_results = join(spec, tensors, *of_incoming)
    return of_operands + [
        None if x is None else y for x, y in zip(incoming, of_results, strict=True)
    ]


def tangent(spec: AttentionSpec, tensors: Tensors, tangents: Several) -> list[torch.Tensor]:
    """Return the tangents of output and log-sum-exp, from those of the operands that get gradients.

    The gradients are linear in those of the results, and the tangents are their derivatives with respect to these.
    """
    attention, operands = prepare(spec, tensors)
    whole = attention.whole(operands)
    inputs = [*whole.operands.flat(), *_rows_of(spec, operands, (None, None))]
    weights = _directions(spec, tensors, tangents)
    results = [len(inputs) - 2, len(inputs) - 1]
    parts = [
        _second_of_block(attention, whole.cut(*block), inputs, weights, results)
        for block in blocks_of(attention, 12)
    ]
    # Side by side rather than into one tensor: `torch.func.linearize` would keep that for all calls.
    rows = [torch.cat(blocks, 3) for blocks in zip(*parts, strict=True)] if parts else inputs[-2:]
    return list(join(spec, tensors, *rows))


class _Kernel:
    """The portable kernel. The backward pass computes all it needs again."""

    def forward(
        self, spec: AttentionSpec, tensors: Tensors, return_lse: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        output, lse = forward(spec, tensors)
        return output, lse, lse.new_empty(0)

    def backward(
        self,
        spec: AttentionSpec,
        tensors: Tensors,
        output: Any,
        statistics: Any,
        incoming: Several,
        wanted: Sequence[bool],
    ) -> list[Any]:
        return gradients(spec, tensors, incoming)


KERNEL: Any = _Kernel()


def _through_prepare(
    spec: AttentionSpec,
    tensors: Tensors,
    compute: Callable[[BlockAttention, Operands], Several],
) -> list[Any]:
    """Return the gradients of the trained operands, of those that `compute` gives in the shapes of a block."""
    with torch.enable_grad():
        leaves = [_leaf(getattr(tensors, name)) for name in _TRAINED]
        others = [_leaf(x) for x in spec.score.operands]
        attention, operands = _prepare_with(spec, tensors, [*leaves, *others])
    with torch.no_grad():
        totals = compute(attention, operands)
    pairs = [(x, y) for x, y in zip(operands.flat(), totals, strict=True) if x is not None]
    inner, incoming = zip(*pairs, strict=True)
    return _gradients(inner, [*leaves, *others], incoming, create_graph=False)


def _leaf(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.detach().requires_grad_()


def _prepare_with(
    spec: AttentionSpec, tensors: Tensors, trained: Several
) -> tuple[BlockAttention, Operands]:
    """Return `prepare` with other tensors in place of the trained ones, in the order of `gradients`."""
    tensors = tensors._replace(**dict(zip(_TRAINED, trained, strict=False)))
    attention, operands = prepare(spec, tensors)
    return attention, operands._replace(others=tuple(trained[len(_TRAINED) :]))


def _rows_of(spec: AttentionSpec, operands: Operands, incoming: Several) -> list[torch.Tensor]:
    """Return gradients of output and log-sum-exp in the shapes of a block: (B, K, G, T, V) and (B, K, G, T, 1)."""
    query, (output, lse) = operands.query, incoming
    shape = query.shape[:4]
    return [
        query.new_zeros((*shape, operands.value.shape[3]))
        if output is None
        else by_key_heads(spec, output),
        query.new_zeros((*shape, 1)) if lse is None else lse.to(query.dtype).reshape(*shape, 1),
    ]


def _directions(spec: AttentionSpec, tensors: Tensors, given: Several) -> list[Any]:
    """Return directions of the trained operands (None for 0) in the shapes of a block."""
    trained = [*(getattr(tensors, name) for name in _TRAINED), *spec.score.operands]
    whole = [
        torch.zeros_like(x) if x is not None and y is None else y
        for x, y in zip(trained, given, strict=True)
    ]
    # What `prepare` does to the operands is linear.
    return _prepare_with(spec, tensors, whole)[1].flat()


def blocks_of(attention: BlockAttention, share: int = 1) -> Iterator[tuple[Span, Span]]:
    """Return the blocks of queries and keys; see `plan.spans`. None for an empty batch."""
    return plan.spans(attention, has_values, share) if attention.scores_per_pair else iter(())


def _kind(place: int, inputs: Sequence[Any]) -> str:
    """Return how a block reads an input: operands in the order of `Operands`, then output and log-sum-exp."""
    kinds = ("query", "key", "key", "bias")
    if place < len(kinds):
        return kinds[place]
    return "query" if place >= len(inputs) - 2 else "whole"


def _view(x: torch.Tensor | None, kind: str, block: Block) -> Any:
    """Return the part of a tensor that a block reads."""
    if x is None or kind == "whole":
        return x
    queries, keys = (slice(span.begin, span.end) for span in (block.queries, block.keys))
    if kind == "query":
        return x[:, :, :, queries]
    if kind == "key":
        return x[:, :, keys]
    everything = slice(None)
    rows, columns = x.shape[2] != 1, x.shape[3] != 1
    return x[:, :, queries if rows else everything, keys if columns else everything]


def _differentiate(
    attention: BlockAttention, block: Block, leaves: Several, twice: bool
) -> tuple[list[torch.Tensor | None], Any, torch.Tensor | None]:
    """Return the gradients of a block, what it sees, and the rows that hold or receive nonfinite numbers.

    The leaves are the operands, and the gradients of output and log-sum-exp.
    """
    *operands, output, lse = leaves
    rows = attention.attend(dataclasses.replace(block, operands=Operands.of(operands)))
    bad = rows.bad(output, lse)
    if bad is not None:
        output, lse = fill(bad, output, 0.0), fill(bad, lse, 0.0)
    gradients = _gradients([rows.output, rows.lse], operands, [output, lse], create_graph=twice)
    return gradients, rows.visible, bad


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


def _second_of_block(
    attention: BlockAttention,
    block: Block,
    tensors: Several,
    cotangents: Several,
    wanted: Sequence[int],
) -> list[Any]:
    """Return the gradients of sum(cotangents * first derivatives) of a block, for tensors in the wanted places."""
    with torch.enable_grad():
        leaves = [_leaf(_view(x, _kind(place, tensors), block)) for place, x in enumerate(tensors)]
        gradients, _, bad = _differentiate(attention, block, leaves, True)
        pairs = [
            (x, _view(weight, _kind(place, tensors), block))
            for place, (x, weight) in enumerate(zip(gradients, cotangents, strict=True))
            if x is not None
        ]
        results, weights = zip(*pairs, strict=True)
        found = _gradients(results, [leaves[place] for place in wanted], weights, False)
    # Rows of queries, or of results: a tangent of NaN is one.
    return [
        fill(bad, x, torch.nan) if bad is not None and _kind(place, tensors) == "query" else x
        for place, x in zip(wanted, found, strict=True)
    ]
