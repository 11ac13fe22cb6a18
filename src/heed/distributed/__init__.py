"""Training and translating on several processes and machines, on engines that exist.

- `processes`: starts worker processes on this machine, watches them, and stops all when one fails.
- `supervisor`: runs a job on worker processes, and starts it again after a fault.
- `cluster`: the workers and their addresses, as TF_CONFIG describes them.
- `meeting`: the workers meet before a job, and compare versions and configs.
- `strategy`: TensorFlow's strategy for a cluster.
- `ray_training`: Ray Train as the launcher.
- `ring_attention`, `split_sequence`, `join_sequence`, `sequence_positions`: attention over a sequence split across the
  workers of a `tf.distribute` strategy.

Nothing here imports TensorFlow or Ray before it is used.
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
