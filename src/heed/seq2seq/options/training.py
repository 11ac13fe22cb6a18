"""Training options, checked when they are made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heed._numbers import check_integer, check_real
from heed._suggestions import nearest
from heed.errors import UsageError, convert_value_errors
from heed.seq2seq.text.scoring import AUTO, BLEU_TOKENIZERS

SCHEDULES = ("cosine", "inverse_sqrt", "constant")
PRECISIONS = ("float32", "bfloat16")
METRICS = ("loss", "bleu", "chrf")
_EVERY = ("validate_every", "validate_sentences", "checkpoint_every")
_MOST_STEPS = 10**8  # the names of checkpoints have room for eight digits


@dataclass(frozen=True)
class TrainingOptions:
    """How a model is trained. With the data and the model's config it determines the final weights.

    Args:
        steps: number of optimizer steps, from 1 to 99,999,999.
        batch_size: sentence pairs in a batch, 1 or more.
        batch_tokens: the most tokens of a batch on either side, padding included, instead; 0: `batch_size` counts.
        accumulate: batches in a step, 1 or more: n batches take the step of one that is n times as large, in the memory
            of one.
        learning_rate: the highest rate, above 0.
        schedule: of the rate after warm-up: "cosine" (half of one, to zero), "inverse_sqrt" or "constant".
        warmup_steps: steps over which the rate rises, 0 or more; a shorter run only warms up. None takes a third of the
            steps, at most 1,000.
        clip_norm: the largest global norm of a gradient, above 0.
        label_smoothing: share of the target that is spread over the vocabulary, in [0, 1).
        alignment_weight: weight of the alignment loss, 0 or more, for text with alignments.
        precision: "float32", or "bfloat16": layers compute in bfloat16, weights and optimizer stay in float32.
        ema: decay of a moving average of the weights, in [0, 1), which is validated and kept in the end; 0: none.
        validate_every: steps between validations, 1 or more.
        validate_with: the metric to validate with: "loss", or "bleu" or "chrf" of greedy translations.
        validate_sentences: the most validation sentences translated for that, 1 or more.
        bleu_tokenizer: of that BLEU, see `text.scoring.choose_bleu_tokenizer`; a run keeps what "auto" chose.
        checkpoint_every: steps between checkpoints, 1 or more.
        keep: checkpoints to keep, 2 or more: the one before the newest is a spare in case the newest is damaged.
        patience: validations without improvement after which training stops and the best weights are kept; 0 never
            stops early and keeps the last weights.
        seed: int in [0, 2**31).

    Raises:
        TaskError: if a value is out of its range.

    Example:
        >>> TrainingOptions(steps=10).batch_size
        64
        >>> TrainingOptions(steps=0)
        Traceback (most recent call last):
        ...
        heed.errors.UsageError: `steps` must be an integer >= 1. Received: steps=0
    """

    steps: int = 600
    batch_size: int = 64
    batch_tokens: int = 0
    accumulate: int = 1
    learning_rate: float = 3e-3
    schedule: str = "cosine"
    warmup_steps: int = None  # type: ignore[assignment]  # __post_init__ makes it a number
    clip_norm: float = 1.0
    label_smoothing: float = 0.0
    alignment_weight: float = 0.05
    precision: str = "float32"
    ema: float = 0.0
    validate_every: int = 100
    validate_with: str = "loss"
    validate_sentences: int = 200
    bleu_tokenizer: str = AUTO
    checkpoint_every: int = 100
    keep: int = 2
    patience: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        with convert_value_errors():
            for name in ("steps", "batch_size", "accumulate", *_EVERY):
                self._check(name, check_integer, least=1)
            self._check("keep", check_integer, least=2)
            for name, known in (
                ("schedule", SCHEDULES),
                ("precision", PRECISIONS),
                ("validate_with", METRICS),
                ("bleu_tokenizer", BLEU_TOKENIZERS),
            ):
                check_one_of(name, getattr(self, name), known)
            if self.warmup_steps is None:
                object.__setattr__(self, "warmup_steps", min(1_000, self.steps // 3))
            for name in ("batch_tokens", "warmup_steps", "patience", "seed"):
                self._check(name, check_integer)
            for name in ("learning_rate", "clip_norm"):
                self._check(name, check_real, least=0, exclusive=True)
            self._check("alignment_weight", check_real, least=0)
            for name in ("label_smoothing", "ema"):
                self._check(name, check_real, least=0, most=1)
            if self.steps >= _MOST_STEPS:
                raise ValueError(
                    f"`steps` must be below {_MOST_STEPS:,}. Received: steps={self.steps}"
                )
            if self.seed >= 2**31:
                raise ValueError(f"`seed` must be below 2**31. Received: seed={self.seed}")

    def _check(self, name: str, check: Callable[..., Any], **bounds: Any) -> None:
        # NumPy's numbers become plain ones, for JSON.
        object.__setattr__(self, name, check(name, getattr(self, name), **bounds))

    def rate(self, step: int) -> float:
        """The learning rate of a step: linear warm-up to the highest, then the schedule.

        With s = step + 1, w = max(1, warmup_steps):
        rate = learning_rate * s / w                                                for s < w
        cosine:        learning_rate / 2 * (1 + cos(pi * (step - warmup_steps) / (steps - warmup_steps)))  after that
        inverse_sqrt:  learning_rate * sqrt(w / s)
        constant:      learning_rate

        Only the cosine depends on the number of steps.

        Args:
            step: int, 0 to steps - 1; the first step is 0.

        Returns:
            In (0, learning_rate].

        Source: Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts" (2017),
            one cycle; Vaswani et al., "Attention is all you need" (2017), section 5.3 (inverse_sqrt: their
            d_model**-0.5 is learning_rate * sqrt(w) here).

        Example:
            >>> options = TrainingOptions(steps=6, learning_rate=1.0, warmup_steps=2)
            >>> [round(options.rate(step), 3) for step in range(6)]
            [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
            >>> options = TrainingOptions(steps=8, learning_rate=1.0, warmup_steps=2, schedule="inverse_sqrt")
            >>> [round(options.rate(step), 3) for step in (0, 1, 7)]
            [0.5, 1.0, 0.5]
        """
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        if self.schedule == "inverse_sqrt":
            return self.learning_rate * math.sqrt(max(1, self.warmup_steps) / (step + 1))
        share = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.learning_rate / 2 * (1 + math.cos(math.pi * min(1.0, share)))

    def to_dict(self) -> dict[str, Any]:
        """The options as JSON-ready values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingOptions:
        """Makes options from values.

        Raises:
            TaskError: for an unknown option or a bad value.
        """
        unknown = sorted(set(values) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise UsageError(f"training options must be known ones. Received: {', '.join(unknown)}")
        return cls(**values)


def check_one_of(name: str, value: Any, known: Sequence[str]) -> None:
    """Checks that a value is one of the known ones.

    Raises:
        ValueError: if it is not.
    """
    if value not in known:
        allowed = ", ".join(map(repr, known))
        like = nearest(str(value), known)
        raise ValueError(f"`{name}` must be one of {allowed}. Received: {name}={value!r}{like}")
