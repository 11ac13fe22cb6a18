"""Counter-based dropout: the seed and (b, n, i, j) decide whether a weight is kept.

So forward, backward, returned weights, every implementation and every block size agree without storing a mask. Each
row (b, n, i) and each column j gets a well-mixed 32-bit hash; their exclusive or, mixed again, is compared with the
rate. All arithmetic is modulo 2^32.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from heed.ops.sizes import Size, Span

_GOLDEN = 0x9E3779B9
# Multipliers of a 32-bit finalizer with low bias (C. Wellons, "Hash Prospector", 2018).
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B


def _u32(value: Any) -> tf.Tensor:
    if isinstance(value, int):
        return tf.constant(value & 0xFFFFFFFF, tf.uint32)
    return tf.cast(value, tf.uint32)


def _half_mix(x: tf.Tensor) -> tf.Tensor:
    """Mixes the high bits only, which decide a comparison."""
    x = x * _u32(_FIRST)
    x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _u32(15)))
    return x * _u32(_SECOND)


def _mix(x: tf.Tensor) -> tf.Tensor:
    x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _u32(16)))
    x = _half_mix(x)
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _u32(16)))


def keep_mask(
    rate: float, seed: tf.Tensor, batch: Size, heads: Size, queries: Span, keys: Span
) -> tf.Tensor:
    """Booleans (B, N, t, s): True with probability 1 - rate.

    Args:
        rate: 0 <= rate < 1.
        seed: (2,) uint32.
        batch, heads: B and N.
        queries, keys: positions of the block in the whole score matrix.
    """
    xor = tf.bitwise.bitwise_xor
    key = _mix(xor(_mix(seed[0] + _u32(_GOLDEN)), seed[1]))
    # Batch entry and head are mixed in turn, so that the result depends on neither B nor N.
    entry = _mix(xor(key, _u32(tf.range(batch))))
    head = _mix(xor(entry[:, None, None], _u32(tf.range(heads))[:, None]))
    row = _mix(xor(head, _u32(queries.positions)))
    column = _mix(_u32(keys.positions) + _u32(_GOLDEN))
    bits = _half_mix(xor(row[..., None], column))
    return bits >= _u32(min(round(rate * 2**32), 2**32 - 1))
