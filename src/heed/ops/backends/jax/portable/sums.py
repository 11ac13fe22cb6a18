"""Sums of rows by products of matrices.

XLA adds up the numbers of a row one after the other on CPUs, which gives gradients twice the error of a sum in parts,
as products of matrices have.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from heed.ops.backends.shared.block import Sums


def _sum(x: jax.Array) -> jax.Array:
    return x @ jnp.ones((x.shape[-1], 1), x.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _repeat(x: jax.Array, length: int) -> jax.Array:
    return jnp.broadcast_to(x, (*x.shape[:-1], length))


@_repeat.defjvp
def _repeat_tangent(length: int, x: Any, tangent: Any) -> tuple[jax.Array, jax.Array]:
    # Linear in the tangent, so that its transpose is a product, too.
    return _repeat(x[0], length), tangent[0] @ jnp.ones((1, length), tangent[0].dtype)


SUMS = Sums(_sum, _repeat)
