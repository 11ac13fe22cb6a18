"""What decides how a model is trained, checked when it is made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heed.seq2seq.errors import TaskError


@dataclass(frozen=True)
class TrainingOptions:
    """How a model is trained. With the data and the model's config it determines the final weights.

    Args:
        steps: number of optimizer steps, 1 or more.
        batch_size: sentence pairs in one step, 1 or more.
        learning_rate: the highest rate, above 0.
        warmup_steps: steps over which the rate rises, 0 or more; then it follows a cosine to zero.
            None takes a third of the steps, at most 1,000.
        clip_norm: the largest global norm of a gradient, above 0.
        label_smoothing: share of the target that is spread over the vocabulary, in [0, 1).
        validate_every: steps between validations, 1 or more.
        checkpoint_every: steps between checkpoints, 1 or more.
        patience: validations without a better loss after which training stops and the best weights
            are kept; 0 never stops early and keeps the last weights.
        seed: int in [0, 2**31).

    Raises:
        TaskError: if a value is out of its range.

    Example:
        >>> TrainingOptions(steps=10).batch_size
        64
        >>> TrainingOptions(steps=0)
        Traceback (most recent call last):
        ...
        heed.seq2seq.errors.TaskError: `steps` must be a whole number of 1 or more. Received: 0
    """

    steps: int = 600
    batch_size: int = 64
    learning_rate: float = 3e-3
    warmup_steps: int = None  # type: ignore[assignment]  # __post_init__ makes it a number
    clip_norm: float = 1.0
    label_smoothing: float = 0.0
    validate_every: int = 100
    checkpoint_every: int = 100
    patience: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "validate_every", "checkpoint_every"):
            self._whole(name, 1, None)
        if self.warmup_steps is None:
            object.__setattr__(self, "warmup_steps", min(1_000, self.steps // 3))
        for name in ("warmup_steps", "patience"):
            self._whole(name, 0, None)
        self._whole("seed", 0, 2**31 - 1)
        for name in ("learning_rate", "clip_norm"):
            value = self._number(name)
            if not (value > 0 and math.isfinite(value)):
                raise TaskError(f"`{name}` must be a positive number. Received: {value}")
        if not 0 <= self._number("label_smoothing") < 1:
            raise TaskError(
                f"`label_smoothing` must be in [0, 1). Received: {self.label_smoothing}"
            )

    def _whole(self, name: str, least: int, most: int | None) -> None:
        value = getattr(self, name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or value < least or (most is not None and value > most):
            bound = f"of {least} or more" if most is None else f"from {least} to {most}"
            raise TaskError(f"`{name}` must be a whole number {bound}. Received: {value}")

    def _number(self, name: str) -> float:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TaskError(f"`{name}` must be a number. Received: {value!r}")
        try:
            return float(value)
        except OverflowError:
            raise TaskError(f"`{name}` must be a number that is not so large") from None

    def to_dict(self) -> dict[str, Any]:
        """The options as plain values, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingOptions:
        """The options with these values.

        Raises:
            TaskError: if there is one that this version does not know, or a value is bad.
        """
        unknown = sorted(set(values) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise TaskError(f"training options must be known ones. Received: {', '.join(unknown)}")
        return cls(**values)
