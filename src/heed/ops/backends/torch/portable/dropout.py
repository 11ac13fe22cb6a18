"""Counter-based dropout: the seed and (b, n, i, j) decide whether a weight is kept, as on every backend.

PyTorch lacks most operations on uint32, so 32-bit numbers are held in int64.
"""

from __future__ import annotations

import torch

from heed.ops.sizes import Span

_GOLDEN = 0x9E3779B9
# Multipliers of a 32-bit finalizer with low bias (C. Wellons, "Hash Prospector", 2018).
_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B
_MASK = 0xFFFFFFFF


def _half_mix(x: torch.Tensor) -> torch.Tensor:
    """Mixes the high bits only, which decide a comparison. Products wrap modulo 2^64, which keeps the low 32 bits."""
    x = (x * _FIRST) & _MASK
    x = x ^ (x >> 15)
    return (x * _SECOND) & _MASK


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = _half_mix(x ^ (x >> 16))
    return x ^ (x >> 16)


def keep_mask(
    rate: float, seed: torch.Tensor, batch: int, heads: int, queries: Span, keys: Span
) -> torch.Tensor:
    """Booleans (B, N, t, s): True with probability 1 - rate.

    Args:
        rate: 0 <= rate < 1.
        seed: (2,) uint32.
        batch, heads: B and N.
        queries, keys: positions of the block in the whole score matrix.
    """
    device, words = seed.device, seed.to(torch.int64)
    key = _mix(_mix((words[0] + _GOLDEN) & _MASK) ^ words[1])
    # Batch entry and head are mixed in turn, so that the result depends on neither B nor N.
    entry = _mix(key ^ torch.arange(batch, device=device))
    head = _mix(entry[:, None, None] ^ torch.arange(heads, device=device)[:, None])
    row = _mix(head ^ torch.arange(queries.begin, queries.end, device=device))
    column = _mix((torch.arange(keys.begin, keys.end, device=device) + _GOLDEN) & _MASK)
    bits = _half_mix(row[..., None] ^ column)
    return bits >= min(round(rate * 2**32), 2**32 - 1)
