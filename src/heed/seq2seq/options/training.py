"""Training options, checked when they are made."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from heed.config import (
    COUNT,
    INDEX,
    NOT_NEGATIVE,
    POSITIVE,
    RATE,
    Range,
    describes_options,
    one_of,
    option,
    optional,
)
from heed.number_checks import check_integer
from heed.seq2seq.options.user_config import UserConfig
from heed.seq2seq.text.scoring import AUTO, BLEU_TOKENIZERS

SCHEDULES = ("cosine", "inverse_sqrt", "constant")
# The names of checkpoints have room for eight digits.
_STEPS = Range(
    "an integer from 1 to 99,999,999", functools.partial(check_integer, least=1, most=99_999_999)
)
_KEEP = Range("an integer from 2", functools.partial(check_integer, least=2))


def _varies(default: Any, values: Range, help: str, details: str = "") -> Any:
    """Return an option whose default help does not tell: tasks recommend their own."""
    return option(default, values, help, details=details, varies=True)


@describes_options
@dataclasses.dataclass(frozen=True)
class TrainingOptions(UserConfig):
    """How a model is trained. With the data and the model's config it determines the final weights.

    Args:
        {options}

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

    # fmt: off
    steps: int = _varies(600, _STEPS, "training steps; with --resume, the total")
    batch_size: int = _varies(64, COUNT, "sentence pairs in a batch")
    batch_tokens: int = _varies(
        0, INDEX, "most tokens per side of a batch, instead", "Padding counts; 0: `batch_size` says how many pairs.")
    accumulate: int = option(
        1, COUNT, "batches per step",
        details="n batches take the step of one that is n times as large, in the memory of one.")
    learning_rate: float = _varies(3e-3, POSITIVE, "highest learning rate")
    schedule: str = _varies(
        "cosine", one_of(SCHEDULES), "after the warm-up", "Cosine is half of one, to zero; see `rate`.")
    warmup_steps: int = option(
        None, optional(INDEX), "steps of warm-up (a third, at most 1,000)", details="A shorter run only warms up.")
    clip_norm: float = option(1.0, POSITIVE, "largest norm of a gradient")
    label_smoothing: float = _varies(0.0, RATE, "share of the target spread over the vocabulary")
    alignment_weight: float = option(0.05, NOT_NEGATIVE, "weight of --alignment in the loss")
    precision: str = _varies(
        "float32", one_of(("float32", "bfloat16")), "dtype that layers compute in",
        "Weights and optimizer stay in float32.")
    ema: float = _varies(
        0.0, RATE, "decay of a moving average of weights, such as 0.999",
        "The average is validated and kept in the end; 0: none.")
    validate_every: int = _varies(100, COUNT, "steps between validations")
    validate_with: str = _varies(
        "loss", one_of(("loss", "bleu", "chrf")), "metric of validation", "BLEU and chrF of greedy translations.")
    validate_sentences: int = option(200, COUNT, "sentences to translate for bleu or chrf")
    bleu_tokenizer: str = _varies(
        AUTO, one_of(BLEU_TOKENIZERS), "tokenizer of bleu: auto (by script), 13a, zh, char ...",
        "See `heed.seq2seq.text.scoring.choose_bleu_tokenizer`; a run keeps what \"auto\" chose.")
    checkpoint_every: int = _varies(100, COUNT, "steps between checkpoints")
    keep: int = option(
        2, _KEEP, "checkpoints to keep",
        details="The one before the newest is a spare in case the newest is damaged.")
    patience: int = _varies(
        0, INDEX, "validations without improvement until it stops",
        "The best weights are kept then; 0 never stops early and keeps the last weights.")
    seed: int = _varies(0, INDEX, "random seed")
    # fmt: on

    def _check_together(self) -> None:
        if self.warmup_steps is None:
            object.__setattr__(self, "warmup_steps", min(1_000, self.steps // 3))

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: linear warm-up to the highest, then the schedule.

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
