"""What decides how a model is trained, checked when it is made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from heed._numbers import check_integer, check_real
from heed.seq2seq.errors import TaskError, values_from_people


@dataclass(frozen=True)
class TrainingOptions:
    """How a model is trained. With the data and the model's config it determines the final weights.

    Args:
        steps: number of optimizer steps, 1 or more.
        batch_size: sentence pairs in one step, 1 or more.
        learning_rate: the highest rate, above 0.
        warmup_steps: steps over which the rate rises, 0 or more; a run shorter than this only warms up.
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
        heed.seq2seq.errors.TaskError: `steps` must be an integer >= 1. Received: steps=0
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
        with values_from_people():
            for name in ("steps", "batch_size", "validate_every", "checkpoint_every"):
                self._check(name, check_integer, least=1)
            if self.warmup_steps is None:
                object.__setattr__(self, "warmup_steps", min(1_000, self.steps // 3))
            for name in ("warmup_steps", "patience", "seed"):
                self._check(name, check_integer)
            for name in ("learning_rate", "clip_norm"):
                self._check(name, check_real, least=0, exclusive=True)
            self._check("label_smoothing", check_real, least=0, most=1)
            if self.seed >= 2**31:
                raise ValueError(f"`seed` must be below 2**31. Received: seed={self.seed}")

    def _check(self, name: str, check: Callable[..., Any], **bounds: Any) -> None:
        # NumPy's numbers become plain ones, so that `to_dict` can be written as JSON.
        object.__setattr__(self, name, check(name, getattr(self, name), **bounds))

    def rate(self, step: int) -> float:
        """The learning rate of a step: linear warm-up to the highest, then half a cosine to zero.

        rate = learning_rate * (step + 1) / warmup_steps                              for step < warmup_steps
        rate = learning_rate / 2 * (1 + cos(pi * (step - warmup_steps) / (steps - warmup_steps)))  after that

        Args:
            step: int, 0 to steps - 1; the first step is 0.

        Returns:
            In (0, learning_rate].

        Source: Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts" (2017),
            one cycle.

        Example:
            >>> options = TrainingOptions(steps=6, learning_rate=1.0, warmup_steps=2)
            >>> [round(options.rate(step), 3) for step in range(6)]
            [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
        """
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        share = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.learning_rate / 2 * (1 + math.cos(math.pi * min(1.0, share)))

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
