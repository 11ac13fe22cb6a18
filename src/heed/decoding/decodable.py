"""What a model offers so that `generate` can decode with it."""

from __future__ import annotations

import functools
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Decodable(Protocol):
    """A model that gives scores for the next token, one step after the other.

    `generate` takes any model with these methods, whatever its source is: text, an image, features, or nothing at all.
    They are traced: `generate` compiles them into one graph, and keeps it while the variables are the same ones.

    Attributes:
        config: with the integers `pad_id`, `start_id`, `end_id` and `target_vocabulary_size`, and if the length of a
            target is bound, that bound as `longest_target` (else None).
        built: whether the variables are there.
        variables: those that it computes with. What else a model holds is a constant of the graph: a change to it goes
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
        """Creates the variables."""
        ...

    def check_source(self, source: Any) -> Any:
        """The source as a tensor whose first axis is B, or None where the model takes none.

        Raises:
            ValueError: if it is no source for this model.
        """
        ...

    def encode_source(self, source: Any) -> Any:
        """The memory: all that depends on the source alone, as a structure of tensors whose first axis is B; or ()."""
        ...

    def make_state(self, rows: Any, length: int, memory: Any) -> Any:
        """What is known before the first token, as a structure of tensors whose first axis has `rows` entries.

        Args:
            rows: a multiple of B, an int or an integer tensor (): rows r b .. r b + r - 1 decode source b.
            length: how many tokens will be read at most.
            memory: what `encode_source` returned.
        """
        ...

    def decode_step(self, tokens: Any, index: Any, state: Any, memory: Any) -> tuple[Any, Any]:
        """Reads tokens.

        Args:
            tokens: (rows, T) integers, one of each row; of prompts several, whose number may be unknown while a graph
                is traced. `rows` is then B.
            index: (), how many tokens have been read before.
            state: what `make_state` or the step before returned. It is not changed.
            memory: what `encode_source` returned.

        Returns:
            Scores for the token after the last one, (rows, vocabulary) float32, and the new state.
        """
        ...

    def decode_all(self, tokens: Any, memory: Any) -> Any:
        """Scores for the token after each, with nothing kept: the same numbers as by steps, but for rounding.

        Args:
            tokens: (rows, T) integers.
            memory: what `encode_source` returned, with `rows` entries in the first axis.

        Returns:
            (rows, T, vocabulary) float32.
        """
        ...


class Aligning(Decodable, Protocol):
    """A `Decodable` model that can say where it looked, as `generate` asks for a `coverage_penalty`.

    Its alignment is what attention gives each of the S places of the source in the step that writes a token: of a
    Transformer the mean of the heads of the last decoder layer but one, of a recurrent translator its only attention.

    Attributes:
        aligns: whether it can, because it has attention.
    """

    aligns: bool

    def make_coverage(self, memory: Any) -> Any:
        """The coverage before the first token, (B, S) float32: 0, and 1 of padding, which needs none.

        Args:
            memory: what `encode_source` returned.
        """
        ...

    def decode_step(
        self, tokens: Any, index: Any, state: Any, memory: Any, return_alignment: bool = False
    ) -> tuple[Any, ...]:
        """As in `Decodable`; with `return_alignment=True` the alignment (rows, T, S) float32 follows the state."""
        ...

    def decode_all(self, tokens: Any, memory: Any, return_alignment: bool = False) -> Any:
        """As in `Decodable`; with `return_alignment=True` the pair of the scores and the alignment (rows, T, S)."""
        ...


def lacking(model: Any) -> list[str]:
    """The names that a model would have to have to be `Decodable`, and has not."""
    # What a class has is not asked of the model, which would compute its properties.
    return [
        name for name in _names() if not hasattr(type(model), name) and not hasattr(model, name)
    ]


@functools.cache
def _names() -> list[str]:
    methods = (name for name in vars(Decodable) if not name.startswith("_"))
    return sorted({*Decodable.__annotations__, *methods})
