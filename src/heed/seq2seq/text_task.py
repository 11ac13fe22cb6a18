"""The task of translating as a person's own parallel text does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed._numbers import check_integer
from heed.seq2seq import parallel_text
from heed.seq2seq.corpus import Corpus, Pair
from heed.seq2seq.errors import TaskError
from heed.seq2seq.task import Batch, Item, Option, Task, padded
from heed.seq2seq.tokenizer import SubwordTokenizer

LONGEST = 128  # tokens in a sentence, its end included; longer ones are not trained on
_MULTIPLE = 8  # batches are padded to a multiple of this
_VALIDATION_BATCH = 64
_SIDES = ("source", "target")
_HELD_OUT = ("validation", "evaluation")

_Ids = tuple[list[int], list[int]]  # of a source and of its target


class _Training(NamedTuple):
    """The training pairs, how many ids each has on both sides, and how many pairs are too long."""

    pairs: list[_Ids]
    lengths: NDArray[np.int64]
    too_long: int


class TextTask(Task):
    """A person's own parallel text.

    The recipe: pre-norm Transformer of 3 + 3 layers and width 256, dropout 0.1, label smoothing
    0.1, 10,000 steps with a peak of 1e-3 after 1,000, or after a third of the steps if these are
    fewer than 3,000; it stops when five validations in a row are no better, and keeps the best
    weights.

    Training needs the files as they were when the run began; evaluation and translation need
    the run folder only.

    Args:
        config: what `to_config` returned.
        read: gives the run folder's file of a name.
    """

    kind, title = "text", "own text"
    options = (
        Option(
            "source",
            Path,
            "own text: sentences, one a line (UTF-8); or both sides: .tsv, .jsonl (any of them .gz)",
            required=True,
        ),
        Option("target", Path, "own text: their translations, line by line"),
        Option("valid_source", Path, "own text: sentences to watch; else some are held out"),
        Option("valid_target", Path, "own text: their translations"),
        Option("test_source", Path, "own text: sentences to be judged by; else some are held out"),
        Option("test_target", Path, "own text: their translations"),
        Option("vocabulary_size", int, "own text: most subwords a side"),
    )
    has_corpus_scores = True
    recipe = {  # noqa: RUF012  (a property of the class, which nobody changes)
        "steps": 10_000,
        "learning_rate": 1e-3,
        "label_smoothing": 0.1,
        "validate_every": 250,
        "checkpoint_every": 250,
        "patience": 5,
        "width": 256,
        "encoder_layers": 3,
        "decoder_layers": 3,
        "feed_forward_width": 1_024,
        "dropout": 0.1,
    }

    def __init__(self, config: Mapping[str, Any], read: Callable[[str], bytes]) -> None:
        self._config = dict(config)
        models = [f"{side}.model" for side in _SIDES]
        texts = [f"{part}.{side}.txt" for part in _HELD_OUT for side in _SIDES]
        self._files = {name: read(name) for name in (*models, *texts)}
        self._source, self.subwords = (SubwordTokenizer(self._files[name]) for name in models)
        lines = [self._files[name].decode().split("\n")[:-1] for name in texts]
        self._validation: list[Pair] = list(zip(*lines[:2], strict=True))
        self._evaluation: list[Pair] = list(zip(*lines[2:], strict=True))
        self.source_vocabulary_size = self._source.vocabulary_size
        self.target_vocabulary_size = self.subwords.vocabulary_size
        self.longest_target = check_integer("longest_target", config["longest_target"], least=1)
        self._empty_pairs = check_integer("empty_pairs", config["empty_pairs"])
        self._originals = {Path(path): sha256 for path, sha256 in dict(config["files"]).items()}

    @classmethod
    def load(cls, config: Mapping[str, Any], read: Callable[[str], bytes]) -> TextTask:
        """The task of a run folder."""
        return cls(config, read)

    @classmethod
    def create(
        cls,
        source: Path | str,
        target: Path | str | None = None,
        vocabulary_size: int = 8_000,
        valid_source: Path | str | None = None,
        valid_target: Path | str | None = None,
        test_source: Path | str | None = None,
        test_target: Path | str | None = None,
    ) -> TextTask:
        """A new task from files of parallel text: reads, splits, and learns the subwords.

        Args:
            source: path of the sentences, or of a file of both sides, see `Corpus`.
            target: path of their translations, if the source has one side.
            vocabulary_size: the most subwords for each side.
            valid_source, valid_target: the same, of what training is watched on. Without them it is held out.
            test_source, test_target: the same, of what `evaluate` judges by. Without them it is held out.

        Raises:
            TaskError: if the files do not fit, or without the sentencepiece library.
        """
        corpus = _corpus("source", source, target)
        if corpus is None:
            raise TaskError("own text needs --source")
        given = [
            _corpus("valid_source", valid_source, valid_target),
            _corpus("test_source", test_source, test_target),
        ]
        everything, empty = parallel_text.read_pairs(corpus)
        parts = iter(parallel_text.split(everything, held_out=given.count(None)))
        next(parts)  # what is left for training, see `_train_on`
        held_out = [next(parts) if one is None else _both_sides(one) for one in given]
        training = _train_on(everything, held_out)
        sides = list(zip(*training, strict=True))
        tokenizers = [SubwordTokenizer.train(lines, vocabulary_size) for lines in sides]
        lengths = np.array([len(ids) for ids in tokenizers[1].encode(sides[1])])
        files = {f"{side}.model": one.model for side, one in zip(_SIDES, tokenizers, strict=True)}
        for name, part in zip(_HELD_OUT, held_out, strict=True):
            for side, lines in zip(_SIDES, zip(*part, strict=True), strict=True):
                files[f"{name}.{side}.txt"] = "".join(f"{line}\n" for line in lines).encode()
        config = {
            "kind": cls.kind,
            "files": {str(path.resolve()): parallel_text.digest(path) for path in corpus.paths},
            "pairs": len(training),
            "empty_pairs": empty,
            "held_out_pairs": len(everything) - len(training),
            # Room for answers half as long again as the longest that are trained on.
            "longest_target": int(1.5 * lengths[lengths <= LONGEST].max(initial=8)),
        }
        return cls(config, files.__getitem__)

    @property
    def description(self) -> str:
        """The files, and how many pairs they hold."""
        files = " and ".join(self._config["files"])
        held_out = len(self._validation) + len(self._evaluation)
        return f"{self._config['pairs']:,} sentence pairs of {files}, {held_out:,} others held out"

    @cached_property
    def _training(self) -> _Training:
        """The training pairs, from the original files."""
        for path, sha256 in self._originals.items():
            if parallel_text.digest(path) != sha256:
                raise TaskError(f"{path} has changed since the run began: start a new run")
        everything, _ = parallel_text.read_pairs(Corpus(*self._originals))
        training = _train_on(everything, [self._validation, self._evaluation])
        kept = [pair for pair in self._ids(training) if max(map(len, pair)) <= LONGEST]
        if not kept:
            raise TaskError(f"no training pair has at most {LONGEST} tokens on both sides")
        lengths = np.array([sum(map(len, pair)) for pair in kept])
        return _Training(kept, lengths, len(training) - len(kept))

    def notes(self) -> list[str]:
        """Which pairs are left out of training, and which are cut in validation."""
        counts = {
            "left out, because a side is empty": self._empty_pairs,
            f"left out of training, because a side has more than {LONGEST} tokens": (
                self._training.too_long
            ),
            f"cut to {LONGEST} tokens a side for validation": sum(
                max(map(len, pair)) > LONGEST for pair in self._ids(self._validation)
            ),
        }
        return [
            f"{count:,} {'pair is' if count == 1 else 'pairs are'} {what}"
            for what, count in counts.items()
            if count
        ]

    def _ids(self, pairs: Sequence[Pair]) -> list[_Ids]:
        sources = self._source.encode([source for source, _ in pairs])
        targets = self.subwords.encode([target for _, target in pairs])
        return list(zip(sources, targets, strict=True))

    def training_batch(self, seed: int, step: int, size: int) -> Batch:
        """The batch of a step; each pair comes once an epoch."""
        chosen = parallel_text.batch_of_step(self._training.lengths, seed, step, size)
        return _batch([self._training.pairs[i] for i in chosen])

    def validation_batches(self) -> list[Batch]:
        """The validation pairs, cut to the longest length, those of like length together."""
        pairs = [(s[:LONGEST], t[:LONGEST]) for s, t in self._ids(self._validation)]
        pairs.sort(key=lambda pair: len(pair[1]))
        return [
            _batch(pairs[i : i + _VALIDATION_BATCH])
            for i in range(0, len(pairs), _VALIDATION_BATCH)
        ]

    def evaluation_items(self) -> list[Item]:
        """The evaluation pairs, in one group; sources that are too long are cut, and say so."""
        found = zip(self._ids(self._evaluation), self._evaluation, strict=True)
        return [Item(_cut(ids), *pair, "text", cut=len(ids) > LONGEST) for (ids, _), pair in found]

    def encode(self, line: str, language: str | None = None) -> list[int]:
        """The source ids of a sentence; TaskError for one that is empty, no text or too long."""
        self.check_language(language)
        if not line.strip():
            raise TaskError("a sentence to translate must not be empty")
        try:
            line.encode()
        except UnicodeEncodeError:  # bytes that were no text when they were read
            raise TaskError("a sentence to translate must be UTF-8 text") from None
        ids = self._source.encode([line.strip()])[0]
        if len(ids) > LONGEST:
            raise TaskError(
                f"a sentence to translate must have at most {LONGEST} tokens, its end included. "
                f"Received: {len(ids):,}"
            )
        return ids

    def source_labels(self, ids: Iterable[int]) -> list[str]:
        """The pieces of the source, and its end."""
        return [*self._source.pieces(ids), "end"]

    def to_config(self) -> dict[str, Any]:
        """Where the files are, what they held, and the longest target."""
        return self._config

    def files(self) -> dict[str, bytes]:
        """The two tokenizers and the held-out pairs."""
        return self._files


def _corpus(name: str, source: Path | str | None, target: Path | str | None) -> Corpus | None:
    if source is None:
        if target is not None:
            raise TaskError(f"{target} has no other side: give --{name.replace('_', '-')} too")
        return None
    return Corpus(Path(source), None if target is None else Path(target))


def _both_sides(corpus: Corpus) -> list[Pair]:
    """The pairs of a held-out part that a person gives.

    Raises:
        TaskError: if there are none.
    """
    pairs = [pair for pair in corpus.pairs() if all(pair)]
    if not pairs:
        raise TaskError(f"{corpus} holds no pair")
    return pairs


def _train_on(everything: Sequence[Pair], held_out: Iterable[Sequence[Pair]]) -> list[Pair]:
    """The pairs whose sources are in no held-out part."""
    kept_back = {source for part in held_out for source, _ in part}
    training = [pair for pair in everything if pair[0] not in kept_back]
    if not training:
        raise TaskError("every sentence to train on is held out too")
    return training


def _cut(ids: list[int]) -> list[int]:
    return ids if len(ids) <= LONGEST else [*ids[: LONGEST - 1], ids[-1]]


def _batch(pairs: Sequence[_Ids]) -> Batch:
    return Batch(*(padded(side, multiple=_MULTIPLE) for side in zip(*pairs, strict=True)))
