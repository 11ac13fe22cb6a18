"""Who looks on: while someone watches, every attention that runs here is shown to him before its output goes on.

Watching is how `heed.inspect` sees the attention of a whole model. It costs one look at a context variable where
nobody does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import tensorflow as tf

from heed.ops._mask_terms import offset
from heed.ops._tile import Attention


class Watched(NamedTuple):
    """One attention.

    Attributes:
        attention: what was computed, but for the tensors.
        value: (B, S, K, V), or for heads_axis 1 (B, K, S, V); without heads (B, S, V).
        heads_axis: of value and output; None where they have no heads.
        weights: of `rows` and `heads`, lists of integers: (B, len(heads), len(rows), S).
        numbers_per_weight: how many numbers are held to compute one.
    """

    attention: Attention
    value: tf.Tensor
    heads_axis: int | None
    weights: Callable[..., tf.Tensor]
    numbers_per_weight: int = 1

    @property
    def start(self) -> Any:
        """The key position at which query 0 stands: an integer, or an integer tensor () or (B,)."""
        mask = self.attention.mask
        return 0 if mask is None else offset(mask.alignment, *self.attention.lengths)


Watcher = Callable[[Watched, tf.Tensor], tf.Tensor]

# Held by whoever replaces functions of Keras, until he has put them back or leaves them so: what is put back at the end
# must be what was there at the beginning.
patching = threading.RLock()

_watcher: ContextVar[Watcher | None] = ContextVar("heed_watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Shows `watcher` each attention that this thread runs meanwhile.

    Args:
        watcher: gets what ran and its output, and returns the output that goes on.
    """
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def shown(output: tf.Tensor, describe: Callable[[], Watched]) -> tf.Tensor:
    """The output, after whoever watches has seen it."""
    watcher = _watcher.get()
    return output if watcher is None else watcher(describe(), output)


def new_tape() -> tf.GradientTape:
    """A tape that records only what it is told to watch."""
    return tf.GradientTape(watch_accessed_variables=False)
