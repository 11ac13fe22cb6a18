"""Counter-based dropout: the seed and (b, n, i, j) decide whether a weight is kept, as on every backend."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from heed.ops.sizes import Span

_GOLDEN = np.uint32(0x9E3779B9)
# Multipliers of a 32-bit finalizer with low bias (C. Wellons, "Hash Prospector", 2018).
_FIRST, _SECOND = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)


def _half_mix(x: jax.Array) -> jax.Array:
    """Mixes the high bits only, which decide a comparison."""
    x = x * _FIRST
    x = x ^ (x >> 15)
    return x * _SECOND


def _mix(x: jax.Array) -> jax.Array:
    x = _half_mix(x ^ (x >> 16))
    return x ^ (x >> 16)


def keep_mask(
    rate: float, seed: jax.Array, batch: int, heads: int, queries: Span, keys: Span
) -> jax.Array:
    """Booleans (B, N, t, s): True with probability 1 - rate.

    Args:
        rate: 0 <= rate < 1.
        seed: (2,) uint32.
        batch, heads: B and N.
        queries, keys: positions of the block in the whole score matrix.
    """

    def count(number: int) -> jax.Array:
        return jnp.arange(number, dtype="uint32")

    key = _mix(_mix(seed[0] + _GOLDEN) ^ seed[1])
    # Batch entry and head are mixed in turn, so that the result depends on neither B nor N.
    entry = _mix(key ^ count(batch))
    head = _mix(entry[:, None, None] ^ count(heads)[:, None])
    row = _mix(head ^ queries.positions.astype("uint32"))
    column = _mix(keys.positions.astype("uint32") + _GOLDEN)
    bits = _half_mix(row[..., None] ^ column)
    return bits >= np.uint32(min(round(rate * 2**32), 2**32 - 1))
