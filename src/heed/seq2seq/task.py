"""What training, evaluation and translation need to know of a task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from heed.seq2seq.tokenizer import PAD_ID


class Batch(NamedTuple):
    """Padded token ids, int32: `source` (B, S) and `target` (B, T).

    A target ends with the end token and has no start token.
    """

    source: NDArray[np.int32]
    target: NDArray[np.int32]


class Item(NamedTuple):
    """One thing to evaluate: the source as ids and as text, the right answer, its group.

    `cut` says whether the ids are only the beginning of the text, which is longer than any source may be.
    """

    ids: list[int]
    text: str
    reference: str
    group: str
    cut: bool = False


class Task(Protocol):
    """What training, evaluation and translation need to know of a task."""

    kind: str
    longest_target: int
    one_shape: bool  # whether nearly all training batches have the same shape
    has_corpus_scores: bool  # whether BLEU and chrF say something of its answers

    @property
    def source_vocabulary_size(self) -> int:
        """Number of source ids."""

    @property
    def target_vocabulary_size(self) -> int:
        """Number of target ids."""

    @property
    def description(self) -> str:
        """What is learned, and from how much, in half a line."""

    def training_batch(self, seed: int, step: int, size: int) -> Batch:
        """The batch of a step, a function of the arguments alone."""

    def notes(self) -> list[str]:
        """What a person should know of the training data, in lines: what is left out, and why."""

    def validation_batches(self) -> list[Batch]:
        """Held-out pairs to watch while training."""

    def evaluation_items(self) -> list[Item]:
        """Held-out pairs to judge a finished run; none is among the validation pairs."""

    def extra_evaluations(self) -> dict[str, list[Item]]:
        """What else to judge a finished run on, by name: pairs that training may have drawn."""

    def encode(self, line: str, language: str | None = None) -> list[int]:
        """The source ids of a line that a person gave; TaskError if it cannot be translated."""

    def decode(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """The text of rows of target ids."""

    def source_labels(self, ids: Iterable[int]) -> list[str]:
        """A short label for each source token."""

    def reading_order(self, ids: Sequence[int]) -> list[int]:
        """The places of source tokens in the order in which people read them."""

    def target_labels(self, ids: Iterable[int]) -> list[str]:
        """A short label for each target token before the end."""

    def to_config(self) -> dict[str, Any]:
        """What `task_from_config` needs, as plain values."""

    def files(self) -> dict[str, bytes]:
        """What else the run folder must hold, by name."""


def whole_number(config: Mapping[str, Any], name: str, least: int) -> int:
    """A whole number of a task's config.

    Raises:
        KeyError, ValueError: if it is missing, something else, or below `least`.

    Example:
        >>> whole_number({"longest_target": 5}, "longest_target", 1)
        5
    """
    value = config[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"`{name}` must be a whole number of {least} or more. Received: {value!r}")
    return value


def padded(rows: Sequence[Sequence[int]], length: int = 0, multiple: int = 1) -> NDArray[np.int32]:
    """Rows of ids as one array, filled with padding.

    Args:
        rows: B rows of ids.
        length: the least number of columns.
        multiple: the number of columns is a multiple of this.

    Returns:
        (B, T) int32.

    Example:
        >>> padded([[5, 6], [7]]).tolist()
        [[5, 6], [7, 0]]
    """
    columns = max([length, *map(len, rows)])
    columns = -(-columns // multiple) * multiple
    out = np.full((len(rows), columns), PAD_ID, np.int32)
    for row, ids in zip(out, rows, strict=True):
        row[: len(ids)] = ids
    return out
