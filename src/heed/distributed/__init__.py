"""Attention over a sequence split across the workers of a `tf.distribute` strategy.

`ring_attention`, `split_sequence`, `join_sequence` and `sequence_positions` load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heed.distributed._ring import ring_attention
    from heed.ops.sequence_split import join_sequence, sequence_positions, split_sequence

__all__ = ["join_sequence", "ring_attention", "sequence_positions", "split_sequence"]

_LAZY = {
    "join_sequence": "heed.ops.sequence_split",
    "ring_attention": "heed.distributed._ring",
    "sequence_positions": "heed.ops.sequence_split",
    "split_sequence": "heed.ops.sequence_split",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return getattr(importlib.import_module(_LAZY[name]), name)
