"""Attention in plain JAX with linear memory, for every device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from heed.ops import checks
from heed.ops.backends.jax.portable._blockwise import blockwise, run_blocks
from heed.ops.backends.jax.shape_inference import has_symbols, placeholder
from heed.ops.backends.shared.block import join, prepare
from heed.ops.backends.shared.operands import Block
from heed.ops.backends.shared.row_statistics import statistics_of
from heed.ops.backends.shared.weights import weights_of
from heed.ops.spec import AttentionSpec, Tensors


class Portable:
    """Attention in plain JAX, block by block."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        """Return None: it runs everywhere."""
        return []

    def attend(
        self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool
    ) -> tuple[jax.Array, jax.Array | None]:
        if has_symbols(tensors):
            return placeholder(spec, tensors, return_lse)
        attention, operands = prepare(spec, tensors)
        output, lse = blockwise(attention, operands)
        return join(spec, tensors, output, lse if return_lse else None)

    def weights(
        self,
        spec: AttentionSpec,
        tensors: Tensors,
        *,
        heads: Sequence[int] | None,
        rows: Sequence[int] | None,
        keys: Sequence[int] | None,
        lse: Any,
    ) -> jax.Array:
        with jax.default_matmul_precision("highest"):
            return weights_of(spec, tensors, heads=heads, rows=rows, keys=keys, lse=lse)

    def statistics(
        self, spec: AttentionSpec, tensors: Tensors, *, keys: Sequence[int]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        chosen = checks.check_indices("keys", keys, spec.lengths[1])
        attention, operands = prepare(spec, tensors)
        operands = lax.stop_gradient(operands)
        shape, dtype = operands.query.shape[:4], operands.query.dtype
        parts = [jnp.zeros((*shape, width), dtype) for width in (1, 1, len(chosen))]
        if spec.lengths[0]:

            def rows(block: Block) -> list[jax.Array]:
                return statistics_of(attention, block, chosen)

            with jax.default_matmul_precision("highest"):
                whole = attention.whole(operands._replace(value=None))
                parts = run_blocks(attention, whole, 4, rows)
        entropy, distance, mass = map(attention.join_heads, parts)
        return entropy[..., 0], distance[..., 0], mass
