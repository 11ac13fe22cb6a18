"""Entropy, mean distance and mass of the rows of weights, in `keras.ops`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from heed.ops.backends.shared.block import (
    BlockAttention,
    Operands,
    fill,
    finite_rows,
    nonfinite_rows,
    seen_rows,
    zero_nonfinite,
)
from heed.ops.backends.shared.weights import take
from heed.ops.sizes import Span

# Its exponential is 0 in every float type, and its product with any sum is finite.
_FAR_BELOW = -1e4


def statistics_of(
    attention: BlockAttention,
    operands: Operands,
    queries: Span,
    chosen: Sequence[int],
) -> list[Any]:
    """Entropy and distance (B, K, G, t, 1) and mass (B, K, G, t, len(chosen)) of a block of queries.

    With the largest score m and r = sum e^(a-m), the entropy is ln(r) - sum e^(a-m) (a-m) / r, in which no large
    numbers cancel.
    """
    keys = Span(0, attention.lengths[1])
    block = operands.cut(queries, keys)
    visible = attention.visible(queries, keys)
    addend = attention.addend(block, visible, queries, keys)
    seen = seen_rows(addend)
    safe = block
    if visible is not None:
        safe = block._replace(query=zero_nonfinite(block.query), key=zero_nonfinite(block.key))
    logits = attention.logits(safe, finite_rows(addend, seen))
    below = logits - ops.max(logits, axis=-1, keepdims=True)
    below = fill(below < _FAR_BELOW, below, _FAR_BELOW)
    powers = ops.exp(below)
    total = ops.sum(powers, axis=-1, keepdims=True)
    distance = attention.distance(block, queries, keys)[..., None, :, :]
    found = [
        ops.log(total) - ops.sum(powers * below, axis=-1, keepdims=True) / total,
        ops.sum(powers * distance, axis=-1, keepdims=True) / total,
        take(powers, chosen, 4) / total,
    ]
    if seen is not None:
        found = [fill(~seen, x, 0.0) for x in found]
    if visible is not None:
        nonfinite = ops.logical_and(nonfinite_rows(block, visible), seen)
        found = [fill(nonfinite, x, math.nan) for x in found]
    return found
