"""Decoding options, checked when they are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from heed._numbers import check_integer, check_real
from heed._weights import WEIGHTS
from heed.errors import convert_value_errors
from heed.seq2seq.options.training import check_one_of

_OF_SAMPLING = ("top_k", "top_p", "seed")


@dataclass(frozen=True)
class DecodingOptions:
    """How translations are decoded, see `heed.models.generate`.

    Args:
        beam_size: hypotheses of a beam search, 1 or more; 1 decodes greedily.
        length_penalty: of a beam search: exponent of the length penalty, 0 or more. Higher favours longer translations.
        coverage_penalty: of a beam search: weight of the reward for attending to all of the source, 0 or more.
        temperature: samples tokens instead: above 0; below 1 sharpens, above 1 flattens. None does not sample.
        top_k: samples among this many of the most likely tokens, 1 or more; None among all.
        top_p: samples among the fewest most likely tokens with this total probability, in (0, 1]; None among all.
        seed: of the samples, an integer; None draws new ones each time.
        max_length: the most tokens of a translation, its end included, 1 or more; None takes the task's.
        weights: storage of the model's weights while it translates, one of those of `heed.models.generate`.
        n_best: translations of each sentence: the best of a beam search, at most `beam_size`; or that many samples.
        scores: whether to return scores, see `heed.models.generate`.

    Raises:
        TaskError: if a value is out of its range, or two conflict.

    Example:
        >>> DecodingOptions(beam_size=4).method
        'beam'
        >>> DecodingOptions(beam_size=0)
        Traceback (most recent call last):
        ...
        heed.errors.UsageError: `beam_size` must be an integer >= 1. Received: beam_size=0
    """

    beam_size: int = 1
    length_penalty: float = 0.6
    coverage_penalty: float = 0.0
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    max_length: int | None = None
    weights: str = "float32"
    n_best: int = 1
    scores: bool = False

    def __post_init__(self) -> None:
        with convert_value_errors():
            self._check("beam_size", check_integer, least=1)
            self._check("length_penalty", check_real, least=0)
            self._check("coverage_penalty", check_real, least=0)
            self._check("temperature", check_real, least=0, exclusive=True, optional=True)
            self._check("top_k", check_integer, least=1, optional=True)
            self._check("top_p", check_real, least=0, exclusive=True, optional=True)
            self._check("seed", check_integer, least=None, optional=True)
            self._check("max_length", check_integer, least=1, optional=True)
            self._check("n_best", check_integer, least=1)
            if (self.top_p or 1) > 1:
                raise ValueError(f"`top_p` must be in (0, 1]. Received: top_p={self.top_p}")
            check_one_of("weights", self.weights, WEIGHTS)
            self._check_together()

    def _check_together(self) -> None:
        if self.temperature is not None and self.beam_size > 1:
            raise ValueError(
                "`temperature` samples, `beam_size` searches: give one of them. "
                f"Received: temperature={self.temperature}, beam_size={self.beam_size}"
            )
        if self.coverage_penalty and self.beam_size == 1:
            raise ValueError(
                "`coverage_penalty` is for a beam search: give a `beam_size` of 2 or more too. "
                f"Received: coverage_penalty={self.coverage_penalty}"
            )
        if self.temperature is None and self.n_best > self.beam_size:
            raise ValueError(
                "`n_best` must be at most `beam_size`, unless a `temperature` samples. "
                f"Received: n_best={self.n_best}, beam_size={self.beam_size}"
            )
        for name in _OF_SAMPLING:
            value = getattr(self, name)
            if self.temperature is None and value is not None:
                raise ValueError(
                    f"`{name}` is for sampling: give a `temperature` too. Received: {name}={value}"
                )

    def _check(self, name: str, check: Callable[..., Any], **bounds: Any) -> None:
        object.__setattr__(self, name, check(name, getattr(self, name), **bounds))

    @property
    def method(self) -> str:
        """The method of `heed.models.generate`: "greedy", "beam" or "sample"."""
        if self.temperature is not None:
            return "sample"
        return "beam" if self.beam_size > 1 else "greedy"

    def arguments(self, batch: int, longest: int) -> dict[str, Any]:
        """The arguments of `heed.models.generate` for a batch.

        Args:
            batch: batches decoded before: each samples with its own seed.
            longest: the most tokens of a translation of the task.
        """
        chosen: dict[str, Any] = {"max_length": self.max_length or longest, "weights": self.weights}
        if self.n_best > 1:
            chosen["num_results"] = self.n_best
        if self.scores:
            chosen["return_scores"] = True
        if self.method == "beam":
            names = ("beam_size", "length_penalty", "coverage_penalty")
            return chosen | {"method": "beam", **{name: getattr(self, name) for name in names}}
        if self.method == "greedy":
            return chosen
        drawn = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}
        seed = None if self.seed is None else self.seed + batch
        return chosen | {"method": "sample", **drawn, "seed": seed}
