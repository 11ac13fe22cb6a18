"""The softmax of a block, whose derivative adds up rows by products of matrices.

XLA adds up the numbers of a row one after the other on CPUs, which gives the gradients of queries twice the error of a
sum in parts, as products of matrices have.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def softmax(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """See `heed.ops.backends.shared.block.softmax`."""
    row_max = lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    powers = jnp.exp(logits - row_max)
    row_sum = jnp.sum(powers, axis=-1, keepdims=True)
    return powers / _repeat(row_sum, logits.shape[-1]), row_max + jnp.log(row_sum)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _repeat(x: jax.Array, count: int) -> jax.Array:
    """(..., 1) to (..., count)."""
    return jnp.broadcast_to(x, (*x.shape[:-1], count))


@_repeat.defjvp
def _repeat_tangent(count: int, x: Any, tangent: Any) -> tuple[jax.Array, jax.Array]:
    # Linear in the tangent, so that its transpose is a product, too.
    return _repeat(x[0], count), tangent[0] @ jnp.ones((1, count), tangent[0].dtype)
