"""An ensemble: several models that decode as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heed.decoding.decodable import Decodable, missing_names
from heed.decoding.streaming import stream

_SHARED = ("pad_id", "start_id", "end_id", "target_vocabulary_size")


@dataclass(frozen=True)
class EnsembleConfig:
    """The config that `generate` reads: the shared tokens, and the smallest of the models' longest targets."""

    pad_id: int
    start_id: int
    end_id: int
    target_vocabulary_size: int
    longest_target: int | None


class Ensemble:
    """Averages the log probabilities of M models in each step: `log p(y_t) = 1/M sum_m log p_m(y_t) + constant`.

    It is `Decodable`: `generate` takes it like a model, and decodes in the graph.

    Args:
        models: One or more `Decodable` models, such as `Transformer` and `RecurrentTranslator`, of any kinds and
            sizes, with the same target tokens, that read the same sources.

    Raises:
        TypeError: If one of them cannot decode.
        ValueError: If there are none, or their target tokens differ.

    Source:
        Sutskever, Vinyals and Le, "Sequence to sequence learning with neural networks" (2014); here the logarithms are
        averaged.

    Example:
        >>> import numpy as np
        >>> from heed.models import Ensemble, Transformer, TransformerConfig, generate
        >>> config = TransformerConfig(20, 30, width=8, num_heads=2, feed_forward_width=16)
        >>> both = Ensemble([Transformer(config), Transformer(config)])
        >>> tuple(generate(both, np.array([[5, 3, 4, 0]]), max_length=6, method="beam").shape)
        (1, 6)
    """

    def __init__(self, models: Sequence[Decodable]) -> None:
        self.models = tuple(models)
        if not self.models:
            raise ValueError("`models` must hold a model or more. Received: none")
        for model in self.models:
            if missing := missing_names(model):
                raise TypeError(
                    "`models` must have the methods of heed.models.Decodable. "
                    f"Received: {model!r}, without {', '.join(missing)}"
                )
        configs = [model.config for model in self.models]
        own = [{name: getattr(config, name) for name in _SHARED} for config in configs]
        for other in own[1:]:
            if other != own[0]:
                raise ValueError(
                    f"`models` must have the same target tokens. Received: {own[0]} and {other}"
                )
        bounds = [x.longest_target for x in configs if x.longest_target is not None]
        self.config = EnsembleConfig(**own[0], longest_target=min(bounds, default=None))

    stream = stream

    @property
    def built(self) -> bool:
        """Whether all models are built."""
        return all(model.built for model in self.models)

    @property
    def variables(self) -> list[Any]:
        """The variables of all models."""
        return [variable for model in self.models for variable in model.variables]

    def build(self) -> None:
        for model in self.models:
            if not model.built:
                model.build()

    def check_source(self, source: Any) -> Any:
        """Return the source as the first model returns it; all models check it."""
        first, *_ = [model.check_source(source) for model in self.models]
        return first

    def encode_source(self, source: Any) -> Any:
        """Return the memory of each model."""
        return [model.encode_source(source) for model in self.models]

    def make_state(self, rows: Any, length: int, memory: Any) -> Any:
        """Return the state of each model before the first token."""
        return [
            model.make_state(rows, length, own)
            for model, own in zip(self.models, memory, strict=True)
        ]

    def decode_step(
        self, tokens: Any, index: Any, state: Any, memory: Any, return_alignment: bool = False
    ) -> tuple[Any, ...]:
        """Read tokens, see `Decodable`; the alignment is the mean over models, see `Aligning`."""
        wanted = {"return_alignment": True} if return_alignment else {}
        parts = zip(self.models, state, memory, strict=True)
        steps = [
            model.decode_step(tokens, index, own, known, **wanted) for model, own, known in parts
        ]
        logits, states, *alignments = map(list, zip(*steps, strict=True))
        return _mean(logits), states, *(sum(x) / len(x) for x in alignments)

    def decode_all(self, tokens: Any, memory: Any, return_alignment: bool = False) -> Any:
        """Return scores of the token after each (see `Decodable`); the alignment is the mean over models."""
        wanted = {"return_alignment": True} if return_alignment else {}
        parts = zip(self.models, memory, strict=True)
        found = [model.decode_all(tokens, known, **wanted) for model, known in parts]
        if not return_alignment:
            return _mean(found)
        return _mean([logits for logits, _ in found]), sum(x for _, x in found) / len(found)

    @property
    def aligns(self) -> bool:
        """Whether all models attend to their source, see `Aligning`."""
        return all(getattr(model, "aligns", False) for model in self.models)

    def make_coverage(self, memory: Any) -> Any:
        """Return the coverage before the first token, see `Aligning`."""
        first: Any = self.models[0]
        return first.make_coverage(memory[0])


def _mean(logits: Sequence[Any]) -> Any:
    """Return the mean of the log probabilities (..., vocabulary), up to a constant for each position."""
    return sum(logits) / len(logits)
