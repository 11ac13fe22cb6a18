"""Attention in plain JAX with linear memory: forward, backward and higher derivatives, block by block.

Memory traffic: each block of queries is read once, and for it all visible keys and values; its scores exist only while
the block is processed. Derivatives recompute the scores. Blocks of one size run in one `lax.scan`, so a program stays
short; the keys that a block reads are a slice of a fixed length, whose begin depends on the block.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from heed.ops.backends.shared import plan
from heed.ops.backends.shared.block import BlockAttention
from heed.ops.backends.shared.operands import Block, Operands, fill
from heed.ops.mask import Mask
from heed.ops.mask_rules import Outline, put_together, take_apart
from heed.ops.sizes import Span, sizes


class Kind(NamedTuple):
    """What is static in an attention: JAX traces once for each.

    Attributes:
        attention: without mask, slopes, seed and operands of the score.
        outlines: of the rules of the mask; None without a mask.
    """

    attention: BlockAttention
    outlines: tuple[Outline, ...] | None


class Extras(NamedTuple):
    """The tensors of an attention that get no gradients.

    Attributes:
        numbers: those of the mask, in order.
        slopes: (N,) of ALiBi, or None.
        seed: (2,) uint32 of the dropout, or None.
    """

    numbers: Sequence[jax.Array]
    slopes: jax.Array | None
    seed: jax.Array | None


def blockwise(attention: BlockAttention, operands: Operands) -> tuple[jax.Array, jax.Array]:
    """Return output (B, K, G, T, V) and log-sum-exp (B, K, G, T, 1), differentiable any number of times."""
    kind, extras = _split(attention)
    # Otherwise GPUs and TPUs round the factors of float32 products.
    with jax.default_matmul_precision("highest"):
        return _compiled(kind, operands, extras)


def run_blocks(
    attention: BlockAttention, whole: Block, share: int, function: Callable[[Block], Any]
) -> list[Any]:
    """Return `function` of each block of queries and its visible keys: trees of (B, K, G, t, x), joined along T."""

    def step(carry: None, block: Block) -> tuple[None, Any]:
        return carry, function(block)

    return _loop(attention, whole, share, step, None)[1]


def _split(attention: BlockAttention) -> tuple[Kind, Extras]:
    numbers: list[Any] = []
    outlines = None
    if attention.mask is not None:
        numbers, outlines = take_apart(attention.mask.rules)
    score = attention.score.with_operands(())
    bare = dataclasses.replace(attention, score=score, mask=None, slopes=None, seed=None)
    return Kind(bare, outlines), Extras(tuple(numbers), attention.slopes, attention.seed)


def _whole(kind: Kind, extras: Extras) -> BlockAttention:
    mask = None if kind.outlines is None else Mask(put_together(kind.outlines, extras.numbers))
    return dataclasses.replace(kind.attention, mask=mask, slopes=extras.slopes, seed=extras.seed)


def _loop(
    attention: BlockAttention, whole: Block, share: int, step: Any, carry: Any
) -> tuple[Any, list[Any]]:
    """Return `carry, rows = step(carry, block)` for all blocks: the last carry, and the rows joined along T."""
    found = []
    for group in plan.groups(attention, share):

        def body(carry: Any, begins: Any, group: plan.Group = group) -> tuple[Any, Any]:
            spans = Span(begins[0], group.length), Span(begins[1], group.width)
            return step(carry, whole.cut(*spans))

        if len(group.queries) == 1:
            carry, rows = body(carry, (group.queries[0], group.keys[0]))
        else:
            # Of JAX's default dtype, as slices mix them with Python's integers.
            begins = jnp.asarray(group.queries), jnp.asarray(group.keys)
            carry, rows = lax.scan(body, carry, begins)
            rows = jax.tree.map(_join_blocks, rows)
        found.append(rows)
    return carry, jax.tree.map(lambda *parts: jnp.concatenate(parts, 3), *found) if found else []


def _join_blocks(x: jax.Array) -> jax.Array:
    """Map (blocks, B, K, G, t, x) to (B, K, G, T, x)."""
    count, batch, heads, queries_per_kv, rows, width = x.shape
    return jnp.moveaxis(x, 0, 3).reshape(batch, heads, queries_per_kv, count * rows, width)


def _recomputed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, whose derivative keeps its arguments only: not the scores of all blocks."""
    return jax.checkpoint(function, prevent_cse=False)


def _forward(attention: BlockAttention, operands: Operands) -> tuple[jax.Array, jax.Array]:
    if attention.lengths[0] == 0:
        shape, dtype = sizes(operands.query)[:4], operands.query.dtype
        return jnp.zeros((*shape, operands.value.shape[3]), dtype), jnp.zeros((*shape, 1), dtype)

    def rows(block: Block) -> tuple[jax.Array, jax.Array]:
        def attend(operands: Operands) -> tuple[jax.Array, jax.Array]:
            found = attention.attend(dataclasses.replace(block, operands=operands))
            return found.output, found.lse

        return _recomputed(attend)(block.operands)

    output, lse = run_blocks(attention, attention.whole(operands), 1, rows)
    return output, lse


def _backward(
    attention: BlockAttention, operands: Operands, incoming: tuple[jax.Array, jax.Array]
) -> Operands:
    """Return the gradients of the operands, from those of output and log-sum-exp."""
    if attention.lengths[0] == 0:
        return jax.tree.map(jnp.zeros_like, operands)

    def step(totals: Operands, block: Block) -> tuple[Operands, jax.Array]:
        queries, keys = block.queries, block.keys
        rows = tuple(lax.dynamic_slice_in_dim(x, *queries, 3) for x in incoming)
        differentiate = functools.partial(_block_gradients, attention, block)
        gradients = _recomputed(differentiate)(block.operands, rows)
        places: Any = {
            "key": (0, 0, keys.begin, 0),
            "value": (0, 0, keys.begin, 0),
            "bias": (0, 0, *_begins(operands.bias, queries, keys)),
            "score_vector": (0,),
        }
        added = {
            name: _add(getattr(totals, name), getattr(gradients, name), place)
            for name, place in places.items()
        }
        others = tuple(x + y for x, y in zip(totals.others, gradients.others, strict=True))
        return totals._replace(**added, others=others), gradients.query

    # The gradients of queries come block by block, so nothing is added up.
    start = jax.tree.map(jnp.zeros_like, operands._replace(query=None))
    totals, query = _loop(attention, attention.whole(operands), 4, step, start)
    return totals._replace(query=query)


def _begins(bias: Any, queries: Span, keys: Span) -> tuple[Any, ...]:
    """Return where a block begins in the last two axes of the bias, of which one of length 1 serves all."""
    if bias is None:
        return 0, 0
    return tuple(
        0 if length == 1 else span.begin
        for length, span in zip(bias.shape[2:], (queries, keys), strict=True)
    )


def _add(total: Any, part: Any, begins: tuple[Any, ...]) -> Any:
    """Return the total with a part added in its place; None stays."""
    if total is None:
        return None
    here = lax.dynamic_slice(total, begins, part.shape)
    return lax.dynamic_update_slice(total, here + part, begins)


def _block_gradients(
    attention: BlockAttention,
    block: Block,
    operands: Operands,
    incoming: tuple[jax.Array, jax.Array],
) -> Operands:
    def attend(operands: Operands) -> Any:
        rows = attention.attend(dataclasses.replace(block, operands=operands))
        return (rows.output, rows.lse), rows

    _, pull, rows = jax.vjp(attend, operands, has_aux=True)
    output, lse = incoming
    bad = rows.bad(output, lse)
    if bad is not None:
        output, lse = fill(bad, output, 0.0), fill(bad, lse, 0.0)
    gradients = pull((output, lse))[0].flat()
    return Operands.of(attention.mark_gradients(gradients, rows.visible, bad))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(kind: Kind, operands: Operands, extras: Extras) -> tuple[jax.Array, jax.Array]:
    return _forward(_whole(kind, extras), operands)


def _attend_forward(kind: Kind, operands: Operands, extras: Extras) -> Any:
    return _forward(_whole(kind, extras), operands), (operands, extras)


def _attend_backward(kind: Kind, saved: Any, incoming: Any) -> Any:
    operands, extras = saved
    with jax.default_matmul_precision("highest"):
        return _backward(_whole(kind, extras), operands, incoming), None


_attend.defvjp(_attend_forward, _attend_backward)
# Outside of a program of the caller, each operation would be compiled by itself, which takes seconds.
_compiled = jax.jit(_attend, static_argnums=0)
