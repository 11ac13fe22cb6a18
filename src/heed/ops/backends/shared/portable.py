"""What the portable forms of all backends share: weights and statistics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from keras import ops

from heed.ops import checks
from heed.ops.backends.protocol import Implementation
from heed.ops.backends.shared._weights import take, weights_of
from heed.ops.backends.shared.block import BlockAttention, Rows, prepare
from heed.ops.backends.shared.operands import Block, Operands, fill
from heed.ops.sizes import Span, is_static
from heed.ops.spec import AttentionSpec, Tensors

# Its exponential is 0 in every float type, and its product with any sum is finite.
_FAR_BELOW = -1e4


# The results of a block, (B, K, G, t, width) each.
OfBlock: TypeAlias = Callable[[Block], list[Any]]


class BlockwiseAttention(Implementation, Protocol):
    """Attention block by block. A backend adds `attend`, with its loop and its derivatives, and `over_blocks`."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        return []

    def prepare(self, spec: AttentionSpec, tensors: Tensors) -> tuple[BlockAttention, Operands]:
        """Return the attention and its operands."""
        return prepare(spec, tensors)

    def over_blocks(
        self, attention: BlockAttention, whole: Block, widths: Sequence[int], function: OfBlock
    ) -> list[Any]:
        """Return what `function` returns of each block, joined along T: one tensor for each of the widths."""

    def weights(self, spec: AttentionSpec, tensors: Tensors, *, lse: Any, **chosen: Any) -> Any:
        if lse is not None:
            lse = checks.check_lse(lse, [spec.batch, spec.heads[0], spec.lengths[0]], spec.dtype)
        return weights_of(*self.prepare(spec, tensors), spec, lse=lse, **chosen)

    def statistics(
        self, spec: AttentionSpec, tensors: Tensors, *, keys: Sequence[int]
    ) -> tuple[Any, Any, Any]:
        # In forward mode, too, nothing flows through them.
        stopped = Tensors(*(None if x is None else ops.stop_gradient(x) for x in tensors))
        score = spec.score.with_operands(tuple(map(ops.stop_gradient, spec.score.operands)))
        attention, operands = self.prepare(dataclasses.replace(spec, score=score), stopped)
        length = attention.lengths[1] if spec.lengths[1] is None else spec.lengths[1]
        chosen = checks.check_indices("keys", keys, length)
        whole = attention.whole(operands._replace(value=None))

        def rows(block: Block) -> list[Any]:
            return _statistics_of(attention, block, chosen)

        found = self.over_blocks(attention, whole, (1, 1, len(chosen)), rows)
        entropy, distance, mass = map(attention.join_heads, found)
        return entropy[..., 0], distance[..., 0], mass


def _statistics_of(attention: BlockAttention, block: Block, chosen: Sequence[int]) -> list[Any]:
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
