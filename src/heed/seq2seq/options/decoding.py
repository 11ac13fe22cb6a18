"""Decoding options, checked when they are made."""

from __future__ import annotations

import dataclasses
from typing import Any

from heed.config import COUNT, FLAG, describes_options, option, optional
from heed.decoding.options import HEAT, DecodingConfig
from heed.seq2seq.options.user_config import UserConfig


def _replace(name: str, default: Any, **changed: Any) -> Any:
    """Return an option of `generate` with another default, and what else is changed."""
    return option(default, **{**DecodingConfig.__dataclass_fields__[name].metadata, **changed})


@describes_options
@dataclasses.dataclass(frozen=True)
class DecodingOptions(UserConfig, DecodingConfig):
    """How translations are decoded, see `heed.models.generate`.

    Args:
        {options}

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

    # fmt: off
    beam_size: int = _replace("beam_size", 1, help="hypotheses of a beam search; 1: greedy", varies=True)
    temperature: float | None = _replace(
        "temperature", None, values=optional(HEAT), help="sample tokens; below 1 sharpens, above 1 flattens")
    max_length: int | None = _replace("max_length", None, help="most tokens of a translation")
    n_best: int = option(
        1, COUNT, "translations of each text", varies=True,
        details="The best of a beam search, at most `beam_size`; or that many samples.")
    scores: bool = option(False, FLAG, "log-probability of each translation, divided by its penalty")
    # fmt: on

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
        for name in _names_of("sample"):
            value = getattr(self, name)
            if self.temperature is None and value is not None:
                raise ValueError(
                    f"`{name}` is for sampling: give a `temperature` too. Received: {name}={value}"
                )

    @property
    def method(self) -> str:
        """The method of `heed.models.generate`: "greedy", "beam" or "sample"."""
        if self.temperature is not None:
            return "sample"
        return "beam" if self.beam_size > 1 else "greedy"

    def arguments(self, batch: int, longest: int) -> dict[str, Any]:
        """Return the arguments of `heed.models.generate` for a batch.

        Args:
            batch: batches decoded before: each samples with its own seed.
            longest: the most tokens of a translation of the task.
        """
        chosen: dict[str, Any] = {"max_length": self.max_length or longest, "weights": self.weights}
        if self.n_best > 1:
            chosen["num_results"] = self.n_best
        if self.scores:
            chosen["return_scores"] = True
        own = {name: getattr(self, name) for name in _names_of(self.method)}
        if own.get("seed") is not None:
            own["seed"] += batch
        return chosen | ({"method": self.method, **own} if own else {})


def _names_of(method: str) -> list[str]:
    """Return the options that only this method has."""
    fields = dataclasses.fields(DecodingConfig)
    return [x.name for x in fields if x.metadata["methods"] == (method,)]
