"""What a task is: everything that training, evaluation and translation need to know of it."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.seq2seq.errors import TaskError
from heed.seq2seq.options import TrainingOptions
from heed.seq2seq.tokenizer import END_ID, PAD_ID, UNKNOWN_ID, Tokenizer, group_words


class Batch(NamedTuple):
    """Padded token ids, int32: `source` (B, S) and `target` (B, T).

    A target ends with the end token and has no start token. `alignment`, (B, T, S) float32, says where each target
    token should look: rows sum to 1, or to 0 where nobody knows; None where nobody knows of any.
    """

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    alignment: NDArray[np.float32] | None = None


class Item(NamedTuple):
    """One thing to evaluate: the source as ids and as text, the right answer, its group.

    `cut` says whether the ids are only the beginning of the text, which is longer than any source may be.
    """

    ids: list[int]
    text: str
    reference: str
    group: str
    cut: bool = False


class Reading(NamedTuple):
    """How an exported model, which runs without heed, turns a text into tokens.

    Args:
        unit: "digits" (the "language", then the digits of a number, units first), "word" or "character" (and an end),
            "subword" (by the SentencePiece tokenizer in the file "source.model"), or None: it takes ids.
        obstacle: why no TensorFlow graph can do that and the reverse, in half a sentence; None if one can.
    """

    unit: str | None
    obstacle: str | None = None


class Option(NamedTuple):
    """One option of `heed train` that a task brings.

    Args:
        name: of the argument of the task's `create`; `--name` on the command line.
        type: makes the value from a word, as `argparse` has it.
        help: what it says, for people.
        required: whether the task needs it.
    """

    name: str
    type: Callable[[str], Any]
    help: str
    required: bool = False


class Task(abc.ABC):
    """What is learned: the data, the tokens, and what training, evaluation and translation need to know of them.

    A new task is such a class in a file of its own and a line in `heed.seq2seq.tasks`.

    Attributes:
        kind: its name, on the command line and in config.json.
        title: what its data is called in a sentence.
        options: what `heed train` takes for it.
        lists: what a config file can list besides: of each entry the keys and their types.
        one_shape: whether nearly all training batches have the same shape.
        languages: which languages an answer can be in, the usual one first; none where there is no choice.
        has_alignments: whether training batches have alignments.
        has_corpus_scores: whether BLEU and chrF say something of its answers.
        shares_vocabulary: whether an id means the same in source and target.
        longest_target: the most tokens of an answer, its end included.
        source_vocabulary_size, target_vocabulary_size: numbers of token ids.
        subwords: the tokenizer of the answers; not needed where `decode` and `target_labels` do without.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()
    lists: ClassVar[Mapping[str, Mapping[str, type]]] = {}
    one_shape: ClassVar[bool] = False
    has_corpus_scores: ClassVar[bool] = False
    shares_vocabulary: bool = False
    has_alignments: bool = False
    languages: tuple[str, ...] = ()
    longest_target: int
    source_vocabulary_size: int
    target_vocabulary_size: int
    subwords: Tokenizer

    # Made anew, and read back

    @classmethod
    @abc.abstractmethod
    def create(cls, *args: Any, **options: Any) -> Task:
        """A new task; the arguments are those that `options` and `lists` name. TaskError if they do not serve."""

    @classmethod
    @abc.abstractmethod
    def load(cls, config: Mapping[str, Any], read: Callable[[str], bytes]) -> Task:
        """The task of a run folder, from what `to_config` returned; `read` gives the contents of one of `files`.

        Raises:
            KeyError, TypeError, ValueError: if the config is not one of this task.
        """

    @abc.abstractmethod
    def to_config(self) -> dict[str, Any]:
        """What `load` needs, as plain values; "kind" among them."""

    @abc.abstractmethod
    def files(self) -> dict[str, bytes]:
        """What else the run folder must hold, by name."""

    # Training

    @property
    def recipe(self) -> dict[str, Any]:
        """How it is best trained: fields of `TrainingOptions` and `TransformerConfig` other than their defaults."""
        return {}

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """What is learned, and from how much, in half a line."""

    @abc.abstractmethod
    def training_batch(self, seed: int, step: int, size: int, tokens: int = 0) -> Batch:
        """The batch of a step, a function of the arguments alone.

        Args:
            seed: int.
            step: int, 0 or more.
            size: pairs in a batch.
            tokens: the most tokens of a batch on either side, padding included; 0: `size` says how large it is.

        Raises:
            TaskError: for a number of tokens, if the task has batches of one size only.
        """

    def check_batches(self, options: TrainingOptions, step: int = 0) -> None:
        """Nothing, if there is a batch for a step of a training.

        Raises:
            TaskError: if there is none of the size that the options ask for, or the text is no longer what it was.
        """
        number = step * options.accumulate
        self.training_batch(options.seed, number, options.batch_size, options.batch_tokens)

    def notes(self) -> list[str]:
        """What a person should know of the training data, in lines: what is left out, and why."""
        return []

    @abc.abstractmethod
    def validation_batches(self) -> list[Batch]:
        """Held-out pairs to watch while training."""

    def validation_texts(self) -> list[tuple[list[int], str]]:
        """The source ids of the validation pairs, and what they are to be translated as."""
        return [
            (row[row != PAD_ID].tolist(), text)
            for batch in self.validation_batches()
            for row, text in zip(batch.source, self.decode(batch.target), strict=True)
        ]

    def same_vocabulary(self, chosen: Collection[str] = ()) -> dict[str, Any]:
        """What `create` is to be given so that a new task has this one's tokens; nothing where it has them anyway.

        Args:
            chosen: the options that it is given already; nothing either, if one of them says what the tokens are.
        """
        return {}

    # Evaluation and translation

    @abc.abstractmethod
    def evaluation_items(self) -> list[Item]:
        """Held-out pairs to judge a finished run; none is among the validation pairs."""

    def extra_evaluations(self) -> dict[str, list[Item]]:
        """What else to judge a finished run on, by name: pairs that training may have drawn."""
        return {}

    def check_language(self, language: str | None) -> None:
        """TaskError if an answer in this language cannot be had; None, for the usual one, always can."""
        if language is not None and language not in self.languages:
            known = (
                f"must be one of {', '.join(self.languages)}"
                if self.languages
                else "cannot be chosen in this run"
            )
            raise TaskError(f"the language {known}. Received: {language}")

    @abc.abstractmethod
    def encode(self, line: str, language: str | None = None) -> list[int]:
        """The source ids of a line that a person gave; TaskError if it cannot be translated."""

    def encode_prefix(self, prefix: str) -> list[int]:
        """The target ids of what a translation is to begin with, without an end.

        Raises:
            TaskError: if it is no text, or has words or characters that no translation of this run has.
        """
        if not prefix.strip():
            raise TaskError("a prefix must not be empty")
        try:
            prefix.encode()
        except UnicodeEncodeError:  # bytes that were no text when they were read
            raise TaskError("a prefix must be UTF-8 text") from None
        ids = self.subwords.encode([prefix])[0][:-1]
        if UNKNOWN_ID in ids or not ids:  # some tokenizers take away letters that are not seen
            what = "words" if self.subwords.unit == "word" else "characters"
            raise TaskError(
                f"a prefix must be of {what} that translations of this run have. Received: {prefix}"
            )
        return ids

    def decode(self, rows: Iterable[Iterable[int]]) -> list[str]:
        """The text of rows of target ids."""
        return self.subwords.decode(rows)

    @abc.abstractmethod
    def source_labels(self, ids: Iterable[int]) -> list[str]:
        """A short label for each source token."""

    def target_labels(self, ids: Iterable[int]) -> list[str]:
        """A short label for each target token before the end."""
        return self.subwords.pieces(ids)

    def source_words(self, ids: Sequence[int]) -> tuple[list[int | None], list[str]]:
        """Which word each source token is part of, None for one that is no text; and the words, in reading order."""
        labels = self.source_labels(ids)
        return group_words([x if i > END_ID else None for i, x in zip(ids, labels, strict=True)])

    def target_words(self, ids: Sequence[int]) -> tuple[list[int | None], list[str]]:
        """The same for target tokens before the end."""
        return self.subwords.words(ids)

    @property
    def reads(self) -> Reading:
        """How an exported model turns a text into tokens."""
        return Reading(None, f"TensorFlow does not read the texts of {self.title}")

    def reading_order(self, ids: Sequence[int]) -> list[int]:
        """The places of source tokens in the order in which people read them."""
        return list(range(len(ids)))


def pad_rows(
    rows: Sequence[Sequence[int]], length: int = 0, multiple: int = 1
) -> NDArray[np.int32]:
    """Rows of ids as one array, filled with padding.

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
