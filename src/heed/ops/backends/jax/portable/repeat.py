"""Repeats a column of numbers; the derivative adds up rows by products of matrices.

XLA adds up the numbers of a row one after the other on CPUs, which gives the gradients of queries twice the error of a
sum in parts, as products of matrices have.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def repeat(x: jax.Array, count: int) -> jax.Array:
    """(..., 1) to (..., count)."""
    return jnp.broadcast_to(x, (*x.shape[:-1], count))


@repeat.defjvp
def _repeat_tangent(count: int, x: Any, tangent: Any) -> tuple[jax.Array, jax.Array]:
    # Linear in the tangent, so that its transpose is a product, too.
    return repeat(x[0], count), tangent[0] @ jnp.ones((1, count), tangent[0].dtype)
