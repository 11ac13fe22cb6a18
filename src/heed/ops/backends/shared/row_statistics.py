"""Entropy, mean distance and mass of the rows of weights, in `keras.ops`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

from heed.ops.backends.shared.block import BlockAttention, Rows
from heed.ops.backends.shared.operands import Block, fill
from heed.ops.backends.shared.weights import take
from heed.ops.sizes import Span, is_static

# Its exponential is 0 in every float type, and its product with any sum is finite.
_FAR_BELOW = -1e4


def statistics_of(attention: BlockAttention, block: Block, chosen: Sequence[int]) -> list[Any]:
    """Return entropy and distance (B, K, G, t, 1) and mass (B, K, G, t, len(chosen)) of queries and all keys they see.

    With the largest score m and r = sum e^(a-m), the entropy is ln(r) - sum e^(a-m) (a-m) / r, in which no large
    numbers cancel.

    Args:
        attention, block: what is asked about.
        chosen: positions of keys, those of the block alone having a mass.
    """
    visible = attention.visible(block)
    nonfinite = attention.nonfinite_rows(block, visible)
    logits, seen = attention.logits(
        attention.scores(block, visible), attention.addend(block, visible)
    )
    if nonfinite is not None and seen is not None:
        nonfinite = ops.logical_and(nonfinite, seen)
    rows = Rows(None, None, None, None, seen, nonfinite, visible)
    below = logits - attention.arithmetic.row_max(logits)
    below = fill(below < _FAR_BELOW, below, _FAR_BELOW)
    powers = ops.exp(below)
    total = ops.sum(powers, axis=-1, keepdims=True)
    distance = attention.distance(block)[..., None, :, :]
    found = [
        ops.log(total) - ops.sum(powers * below, axis=-1, keepdims=True) / total,
        ops.sum(powers * distance, axis=-1, keepdims=True) / total,
        _of_keys(powers, chosen, block.keys) / total,
    ]
    return [rows.mark(x, 0.0) for x in found]


def _of_keys(x: Any, chosen: Sequence[int], keys: Span) -> Any:
    """Return the entries (..., len(chosen)) of chosen keys, 0 for those beyond the block."""
    if is_static(*keys) and keys.begin == 0 and all(key < keys.length for key in chosen):
        return take(x, chosen, 4)
    places = ops.convert_to_tensor(list(chosen), "int32") - keys.begin
    inside = ops.logical_and(places >= 0, places < keys.length)
    found = ops.take(x, ops.clip(places, 0, keys.length - 1), axis=4)
    return fill(~inside, found, 0.0)
