"""The base class of tasks: all that training, evaluation and translation need."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.errors import UsageError
from heed.seq2seq.options.training import TrainingOptions
from heed.seq2seq.text.normalization import Normalizer
from heed.seq2seq.tokens.tokenizer import END_ID, PAD_ID, UNKNOWN_ID, Tokenizer, group_words
from heed.suggestions import nearest


class Batch(NamedTuple):
    """Padded token ids, int32: `source` (B, S) and `target` (B, T).

    Targets end with the end token and have no start token. `alignment` (B, T, S), float32, holds the source tokens that
    each target token should attend to: rows sum to 1, or to 0 where unknown. None: the batch has no alignments.
    """

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    alignment: NDArray[np.float32] | None = None


class Item(NamedTuple):
    """A pair to evaluate: the source as ids and as text, the reference translation, and its group.

    `cut`: the ids are only the beginning of a source that is longer than the model takes.
    """

    ids: list[int]
    text: str
    reference: str
    group: str
    cut: bool = False


class Reading(NamedTuple):
    """How an exported model, which runs without heed, turns text into tokens."""

    # "digits" (the "language", then the digits of a number, units first), "word" or "character" (then an end),
    # "subword" (by the SentencePiece tokenizer in the file "source.model"), or None: it takes ids
    unit: str | None
    # why a TensorFlow graph cannot do that and the reverse, in half a sentence; None if it can
    obstacle: str | None = None


class Option(NamedTuple):
    """An option of `heed train` that a task adds."""

    name: str  # the argument of the task's `create`; `--name` on the command line
    type: Callable[[str], Any]  # converts the word to a value, as in `argparse`
    help: str  # the help text
    required: bool = False  # whether the task needs it


class Task(abc.ABC):
    """A task to learn: data, tokens, and the conversion of texts to ids and back.

    A new task is a class in its own file and a line in `heed.seq2seq.tasks.registry`.

    Attributes:
        kind: its name on the command line and in config.json.
        title: its data, as a sentence names it.
        purpose: what its models do, as a sentence for people who try one.
        examples: texts to try that are of no user's data.
        options: the options that `heed train` gets from it.
        lists: lists that a config file may hold as well: the keys of an entry, with their types.
        one_shape: whether nearly all training batches have the same shape.
        languages: the target languages, the default first; empty if there is no choice.
        has_alignments: whether training batches have alignments.
        has_corpus_scores: whether BLEU and chrF are meaningful for it.
        shares_vocabulary: whether an id means the same in source and target.
        longest_target: the most tokens of a target, its end included.
        longest_source: the most tokens of a source that `encode` returns, its end included; None: no bound of the task.
        source_vocabulary_size, target_vocabulary_size: numbers of token ids.
        normalizer: what `encode` does to a text first; None: only what the task itself does.
        subwords: the target tokenizer; not needed if `decode` and `target_labels` are overridden.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    purpose: ClassVar[str] = "Translates text."
    examples: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[Option, ...]] = ()
    lists: ClassVar[Mapping[str, Mapping[str, Callable[[str], Any]]]] = {}
    one_shape: ClassVar[bool] = False
    has_corpus_scores: ClassVar[bool] = False
    shares_vocabulary: bool = False
    has_alignments: bool = False
    languages: tuple[str, ...] = ()
    normalizer: Normalizer | None = None
    longest_target: int
    longest_source: int | None = None
    source_vocabulary_size: int
    target_vocabulary_size: int
    subwords: Tokenizer
    _kept: tuple[tuple[int, int, int, int], Batch] | None = None  # see `check_batches`

    # Creating and loading

    @classmethod
    @abc.abstractmethod
    def create(cls, *args: Any, **options: Any) -> Task:
        """Make a new task from the arguments that `options` and `lists` name; TaskError if they are not usable."""

    @classmethod
    @abc.abstractmethod
    def load(cls, config: Mapping[str, Any], read: Callable[[str], bytes]) -> Task:
        """Load the task of a run folder.

        Args:
            config: the values that `to_config` returned.
            read: returns the contents of one of `files`.

        Raises:
            KeyError, TypeError, ValueError: if the config is not one of this task.
        """

    @abc.abstractmethod
    def to_config(self) -> dict[str, Any]:
        """Return the plain values that `load` needs, "kind" among them."""

    @abc.abstractmethod
    def files(self) -> dict[str, bytes]:
        """Return the other files that the run folder needs, by name."""

    # Training

    @property
    def recipe(self) -> dict[str, Any]:
        """Recommended fields of `TrainingOptions` and `TransformerConfig`, where they differ from the defaults."""
        return {}

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """The data and its size, in half a line."""

    @abc.abstractmethod
    def training_batch(self, seed: int, step: int, size: int, tokens: int = 0) -> Batch:
        """Return the batch of a step, a function of the arguments alone.

        Args:
            seed: int.
            step: int, 0 or more.
            size: pairs in a batch.
            tokens: the most tokens of a batch on either side, padding included; 0: `size` counts.

        Raises:
            TaskError: for a number of tokens, if the task has batches of one size only.
        """

    def check_batches(self, options: TrainingOptions, step: int = 0) -> None:
        """Check that a training has a batch for a step, and keep it for `take_batch`.

        Raises:
            TaskError: if there is none of the requested size, or the text has changed.
        """
        number = step * options.accumulate
        wanted = (options.seed, number, options.batch_size, options.batch_tokens)
        if self._kept is None or self._kept[0] != wanted:
            self._kept = wanted, self.training_batch(*wanted)

    def take_batch(self, seed: int, step: int, size: int, tokens: int = 0) -> Batch:
        """Return the `training_batch` of these arguments; what `check_batches` has made is not made again."""
        wanted, kept = (seed, step, size, tokens), self._kept
        self._kept = None
        return kept[1] if kept and kept[0] == wanted else self.training_batch(*wanted)

    def notes(self) -> list[str]:
        """Note on the training data, such as which pairs are left out and why, one a line."""
        return []

    @abc.abstractmethod
    def validation_batches(self) -> list[Batch]:
        """Return held-out pairs to validate on during training."""

    def validation_texts(self) -> list[tuple[list[int], str]]:
        """Return the source ids and the reference text of each validation pair."""
        return [
            (row[row != PAD_ID].tolist(), text)
            for batch in self.validation_batches()
            for row, text in zip(batch.source, self.decode(batch.target), strict=True)
        ]

    def same_vocabulary(self, chosen: Collection[str] = ()) -> dict[str, Any]:
        """Return arguments of `create` that give a new task this one's tokens; empty if it has them anyway.

        Args:
            chosen: options that are set already; the result is empty if one of them determines the tokens.
        """
        return {}

    # Evaluation and translation

    @abc.abstractmethod
    def evaluation_items(self) -> list[Item]:
        """Return held-out pairs to evaluate a finished run on; none is a validation pair."""

    def extra_evaluations(self) -> dict[str, list[Item]]:
        """Return more pairs to evaluate a finished run on, by name; training may have drawn them."""
        return {}

    def check_language(self, language: str | None) -> None:
        """Check a target language; None, the default one, is always valid.

        Raises:
            TaskError: if the run does not have it.
        """
        if language is not None and language not in self.languages:
            known = (
                f"must be one of {', '.join(self.languages)}"
                if self.languages
                else "cannot be chosen in this run"
            )
            like = nearest(str(language), self.languages)
            raise UsageError(f"the language {known}. Received: {language}{like}")

    @abc.abstractmethod
    def encode(self, line: str, language: str | None = None) -> list[int]:
        """Return the source ids of a line of text; TaskError if it cannot be translated."""

    def encode_prefix(self, prefix: str) -> list[int]:
        """Return the target ids of a translation's beginning, without an end.

        Raises:
            TaskError: if it is not text, or has words or characters that the run's targets lack.
        """
        if not prefix.strip():
            raise UsageError("a prefix must not be empty")
        try:
            prefix.encode()
        except UnicodeEncodeError:  # bytes that were not UTF-8
            raise UsageError("a prefix must be UTF-8 text") from None
        ids = self.subwords.encode([prefix])[0][:-1]
        if UNKNOWN_ID in ids or not ids:  # some tokenizers drop invisible characters
            units = "words" if self.subwords.unit == "word" else "characters"
            raise UsageError(
                f"a prefix must be of {units} that translations of this run have. Received: {prefix}"
            )
        return ids

    def decode(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """Return the texts of rows of target ids.

        The text of a row's beginning must be a beginning of its text, except for spaces and U+FFFD at its end, because
        translations are streamed.
        """
        return self.subwords.decode(rows)

    def normalize_target(self, text: str) -> str:
        """Return a reference in the form in which the task writes texts, to compare them."""
        return text

    @abc.abstractmethod
    def source_labels(self, ids: Iterable[int]) -> list[str]:
        """Return a short label for each source token."""

    def target_labels(self, ids: Iterable[int]) -> list[str]:
        """Return a short label for each target token before the end."""
        return self.subwords.pieces(ids)

    def source_words(self, ids: Sequence[int]) -> tuple[list[int | None], list[str]]:
        """Return the word of each source token (None if it is not text), and the words, in reading order."""
        labels = self.source_labels(ids)
        return group_words([x if i > END_ID else None for i, x in zip(ids, labels, strict=True)])

    def target_words(self, ids: Sequence[int]) -> tuple[list[int | None], list[str]]:
        """Return the same for target tokens before the end."""
        return self.subwords.words(ids)

    @property
    def reads(self) -> Reading:
        """How an exported model turns a text into tokens."""
        return Reading(None, f"TensorFlow does not read the texts of {self.title}")

    def reading_order(self, ids: Sequence[int]) -> list[int]:
        """Return the positions of source tokens in reading order."""
        return list(range(len(ids)))


def pad_rows(
    rows: Sequence[Sequence[int]], length: int = 0, multiple: int = 1
) -> NDArray[np.int32]:
    """Pad rows of ids to one array.

    Args:
        rows: B rows of ids.
        length: the least number of columns.
        multiple: the number of columns is a multiple of this.

    Returns:
        (B, T) int32.

    Example:
        >>> pad_rows([[5, 6], [7]]).tolist()
        [[5, 6], [7, 0]]
    """
    columns = max([length, *map(len, rows)])
    columns = -(-columns // multiple) * multiple
    out = np.full((len(rows), columns), PAD_ID, np.int32)
    for row, ids in zip(out, rows, strict=True):
        row[: len(ids)] = ids
    return out
