"""Attention in plain JAX with linear memory, for every device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from heed.ops.backends.jax.portable._blockwise import blockwise, run_blocks
from heed.ops.backends.protocol import OutputAndLse
from heed.ops.backends.shared.block import BlockAttention, join
from heed.ops.backends.shared.operands import Block
from heed.ops.backends.shared.portable import BlockwiseAttention, OfBlock
from heed.ops.spec import AttentionSpec, Tensors


class Portable(BlockwiseAttention):
    """Attention in plain JAX, block by block. Other implementations override `attend_numbers`."""

    def attend(self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool) -> OutputAndLse:
        if _has_symbols(tensors):
            return _placeholder(spec, tensors, return_lse)
        return self.attend_numbers(spec, tensors, return_lse)

    def attend_numbers(
        self, spec: AttentionSpec, tensors: Tensors, return_lse: bool
    ) -> OutputAndLse:
        """Do as `attend`, for sizes that are numbers."""
        output, lse = blockwise(*self.prepare(spec, tensors))
        return join(spec, tensors, output, lse if return_lse else None)

    def weights(self, spec: AttentionSpec, tensors: Tensors, **chosen: Any) -> jax.Array:
        with jax.default_matmul_precision("highest"):
            return super().weights(spec, tensors, **chosen)

    def over_blocks(
        self, attention: BlockAttention, whole: Block, widths: Sequence[int], function: OfBlock
    ) -> list[jax.Array]:
        query = whole.operands.query
        if query.shape[3] == 0:
            return [jnp.zeros((*query.shape[:4], width), query.dtype) for width in widths]
        with jax.default_matmul_precision("highest"):
            return run_blocks(attention, whole, 4, function)


def _has_symbols(tensors: Tensors) -> bool:
    """Return whether a size of query, key or value is a symbol, with which no program can be compiled.

    Keras infers shapes by tracing with such sizes.

    Raises:
        ValueError: if it is one, but the caller will not only read shapes (`jax.export` has such sizes, too).
    """
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope

    arrays = (tensors.query, tensors.key, tensors.value)
    if all(isinstance(n, int) for x in arrays for n in x.shape):
        return False
    if not in_symbolic_scope():
        shapes = ", ".join(map(str, (x.shape for x in arrays)))
        raise ValueError(
            f"`query`, `key` and `value` must have sizes that are numbers. Received: {shapes}"
        )
    return True


def _placeholder(spec: AttentionSpec, tensors: Tensors, return_lse: bool) -> OutputAndLse:
    """Return an output and a log-sum-exp of the right shapes and dtypes."""
    query, width = tensors.query, tensors.value.shape[-1]
    output = jnp.zeros((*query.shape[:-1], width), query.dtype)
    shape = query.shape[:-1]
    if spec.heads_axis == 2:
        shape = (shape[0], shape[2], shape[1])
    return output, jnp.zeros(shape, spec.dtype) if return_lse else None


def second_derivatives(
    attend: Callable[[list[Any]], Any], trained: list[Any], incoming: Any, cotangents: Sequence[Any]
) -> Any:
    """Return the gradients of sum(cotangents * gradients of the trained operands): theirs, and those of `incoming`.

    Args:
        attend: the portable form, as a function of the trained operands.
        trained: the operands.
        incoming: gradients of the results of `attend`.
        cotangents: of the gradients of the operands.
    """

    def first(trained: list[Any], incoming: Any) -> tuple[Any, ...]:
        return tuple(jax.vjp(attend, trained)[1](incoming)[0])

    return jax.vjp(first, trained, incoming)[1](tuple(cotangents))
