"""The result of a training, readable without TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Trained:
    """The result of a training.

    Args:
        steps: steps taken in all.
        seconds: their time, over all sittings, validation and checkpoints included.
        stopped_early: whether validation stopped it.
        best_step: the step of the best validation; its weights are kept if `patience` is set.
    """

    steps: int
    seconds: float
    stopped_early: bool
    best_step: int
