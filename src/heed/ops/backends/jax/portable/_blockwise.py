"""Attention in plain JAX with linear memory: forward, backward and higher derivatives, block by block.

Memory traffic: each block of queries is read once, and for it all visible keys and values; its scores exist only while
the block is processed. Derivatives recompute the scores. Blocks of one size run in one `lax.scan`, so a program stays
short; the keys that a block reads are a slice of a fixed length, whose begin depends on the block.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from heed.ops.backends.shared import plan
from heed.ops.backends.shared.block import BlockAttention
from heed.ops.backends.shared.operands import Block, Operands, fill
from heed.ops.sizes import Span, sizes


def _flatten(attention: BlockAttention) -> tuple[Any, BlockAttention]:
    """Return the tensors of an attention that get no gradients, and the rest, for which JAX traces once each."""
    bare = dataclasses.replace(
        attention, score=attention.score.with_operands(()), mask=None, slopes=None, seed=None
    )
    return (attention.mask, attention.slopes, attention.seed), bare


def _unflatten(bare: BlockAttention, tensors: Any) -> BlockAttention:
    mask, slopes, seed = tensors
    return dataclasses.replace(bare, mask=mask, slopes=slopes, seed=seed)


jax.tree_util.register_pytree_node(BlockAttention, _flatten, _unflatten)


def blockwise(attention: BlockAttention, operands: Operands) -> tuple[jax.Array, jax.Array]:
    """Return output (B, K, G, T, V) and log-sum-exp (B, K, G, T, 1), differentiable any number of times."""
    # Otherwise GPUs and TPUs round the factors of float32 products.
    with jax.default_matmul_precision("highest"):
        return _compiled(attention, operands)


def run_blocks(
    attention: BlockAttention, whole: Block, share: int, function: Callable[[Block], Any]
) -> list[Any]:
    """Return `function` of each block of queries and its visible keys: trees of (B, K, G, t, x), joined along T."""

    def step(carry: None, block: Block) -> tuple[None, Any]:
        return carry, function(block)

    return _loop(attention, whole, share, step, None)[1]


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


@jax.custom_vjp
def _attend(attention: BlockAttention, operands: Operands) -> tuple[jax.Array, jax.Array]:
    return _forward(attention, operands)


def _attend_forward(attention: BlockAttention, operands: Operands) -> Any:
    return _forward(attention, operands), (attention, operands)


def _attend_backward(saved: Any, incoming: Any) -> Any:
    attention, operands = saved
    with jax.default_matmul_precision("highest"):
        return None, _backward(attention, operands, incoming)


_attend.defvjp(_attend_forward, _attend_backward)
# Outside of a program of the caller, each operation would be compiled by itself, which takes seconds.
_compiled = jax.jit(_attend)
