"""The methods by which `generate` decodes with a model."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Decodable(Protocol):
    """A model that scores the next token, step by step.

    `generate` takes any model with these methods, whatever its source is: text, an image, features, or none.
    They are traced: `generate` compiles them into one graph, and keeps it while the variables are the same ones.

    Attributes:
        config: with the integers `pad_id`, `start_id`, `end_id` and `target_vocabulary_size`, and the most tokens of a
            target as `longest_target`, or None.
        built: whether the variables exist.
        variables: those that it computes with. Everything else in a model is a constant of the graph, whose changes go
            unseen.

    Example:
        >>> from heed.models import Decodable, LanguageModel, LanguageModelConfig
        >>> isinstance(LanguageModel(LanguageModelConfig(30, width=8, num_heads=2)), Decodable)
        True
    """

    config: Any
    built: bool
    variables: Any

    def build(self) -> Any:
        """Create the variables."""
        ...

    def check_source(self, source: Any) -> Any:
        """Return the source as a tensor whose first axis is B, or None where the model takes none.

        Raises:
            ValueError: if the model cannot take it.
        """
        ...

    def encode_source(self, source: Any) -> Any:
        """Return all that depends on the source alone, a structure of tensors whose first axis is B; or ()."""
        ...

    def make_state(self, rows: Any, length: int, memory: Any) -> Any:
        """Return the state before the first token, a structure of tensors whose first axis has `rows` entries.

        Args:
            rows: r B, an int or an integer tensor (): rows r b .. r b + r - 1 decode source b.
            length: the most tokens that will be read.
            memory: from `encode_source`.
        """
        ...

    def decode_step(self, tokens: Any, index: Any, state: Any, memory: Any) -> tuple[Any, Any]:
        """Read tokens.

        Args:
            tokens: (rows, T) integers, T being 1; of prompts more, perhaps unknown while a graph is traced, and `rows`
                is B.
            index: (), the number of tokens read before.
            state: from `make_state` or the step before. It is not changed.
            memory: from `encode_source`.

        Returns:
            Scores for the token after the last one, (rows, vocabulary) float32, and the new state.
        """
        ...

    def decode_all(self, tokens: Any, memory: Any) -> Any:
        """Return scores for the token after each, without a state: those of the steps, up to rounding.

        Args:
            tokens: (rows, T) integers.
            memory: from `encode_source`, with `rows` entries in the first axis.

        Returns:
            (rows, T, vocabulary) float32.
        """
        ...


class Aligning(Decodable, Protocol):
    """A `Decodable` model that returns alignments, which `generate` needs for a `coverage_penalty`.

    An alignment is the attention to each of the S positions of the source in the step that writes a token: of a
    Transformer the mean of the heads of the last decoder layer but one, of a recurrent translator its only attention.

    Attributes:
        aligns: whether it has such attention.
    """

    aligns: bool

    def make_coverage(self, memory: Any) -> Any:
        """Return the coverage before the first token, (B, S) float32: 0, and 1 for padding, which needs none.

        Args:
            memory: from `encode_source`.
        """
        ...

    def decode_step(
        self, tokens: Any, index: Any, state: Any, memory: Any, return_alignment: bool = False
    ) -> tuple[Any, ...]:
        """Do as in `Decodable`; with `return_alignment=True` the alignment (rows, T, S) float32 follows the state."""
        ...

    def decode_all(self, tokens: Any, memory: Any, return_alignment: bool = False) -> Any:
        """Do as in `Decodable`; with `return_alignment=True` the pair of the scores and the alignment (rows, T, S)."""
        ...


def missing_names(model: Any) -> list[str]:
    """Return the attributes and methods of `Decodable` that a model lacks."""
    methods = (name for name in vars(Decodable) if not name.startswith("_"))
    names = sorted({*Decodable.__annotations__, *methods})
    # The class first: properties of the model are not computed.
    return [name for name in names if not hasattr(type(model), name) and not hasattr(model, name)]
