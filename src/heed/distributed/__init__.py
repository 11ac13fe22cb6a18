"""Attention over a sequence split across the workers of a `tf.distribute` strategy.

`ring_attention`, `split_sequence`, `join_sequence` and `sequence_positions` load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heed.lazy import load_on_use

if TYPE_CHECKING:
    from heed.distributed._ring import ring_attention
    from heed.ops.sequence_split import join_sequence, sequence_positions, split_sequence

__all__ = ["join_sequence", "ring_attention", "sequence_positions", "split_sequence"]

__getattr__, __dir__ = load_on_use(
    __name__,
    {
        "._ring": ("ring_attention",),
        "heed.ops.sequence_split": ("join_sequence", "sequence_positions", "split_sequence"),
    },
)
