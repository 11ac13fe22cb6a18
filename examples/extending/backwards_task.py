"""A task for `heed train`: to write words backwards. Its line in `tasks/registry.py` makes it known."""

# ruff: noqa: D102  (`Task` describes the methods)

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from heed.seq2seq import Task, TaskError, UsageError
from heed.seq2seq.tasks.task import Batch, Item, Option, pad_rows
from heed.seq2seq.tokens.tokenizer import END_ID

FIRST = 4  # the ids below are padding, start, end and unknown


class BackwardsTask(Task):
    """Words of three to eight letters, and the same words backwards; one in ten is held out."""

    kind, title = "backwards", "words backwards"
    options = (Option("letters", str, "backwards: the letters of the words", required=True),)
    recipe = {"steps": 300, "width": 64}  # noqa: RUF012
    one_shape = True
    longest_target = 9  # including the end

    def __init__(self, letters: str) -> None:
        self.letters = letters
        self.source_vocabulary_size = self.target_vocabulary_size = FIRST + len(letters)

    @classmethod
    def create(cls, letters: str) -> BackwardsTask:
        if len(set(letters)) < max(2, len(letters)):
            raise UsageError(f"`letters` must be two or more, each once. Received: {letters}")
        return cls(letters)

    @classmethod
    def load(cls, config: Mapping[str, Any], read: Any) -> BackwardsTask:
        return cls(config["letters"])

    def to_config(self) -> dict[str, Any]:
        return {"kind": self.kind, "letters": self.letters}

    def files(self) -> dict[str, Any]:
        return {}

    @property
    def description(self) -> str:
        return f"words of the letters {self.letters}, one in ten held out"

    def _words(self, count: int, *key: int, held_out: bool = False) -> list[list[int]]:
        generator = np.random.default_rng(key)
        words: list[list[int]] = []
        while len(words) < count:
            word = generator.integers(len(self.letters), size=generator.integers(3, 9)) + FIRST
            if (hash(tuple(word.tolist())) % 10 == 0) == held_out:
                words.append(word.tolist())
        return words

    def _batch(self, words: list[list[int]]) -> Batch:
        answers = [[*word[::-1], END_ID] for word in words]
        return Batch(pad_rows(words, 8), pad_rows(answers, self.longest_target))

    def training_batch(self, seed: int, step: int, size: int, tokens: int = 0) -> Batch:
        return self._batch(self._words(size, seed, step))

    def validation_batches(self) -> list[Batch]:
        return [self._batch(self._words(64, 0, held_out=True))]

    def evaluation_items(self) -> list[Item]:
        texts = self.decode(self._words(100, 1, held_out=True))
        return [Item(self.encode(text), text, text[::-1], "words") for text in texts]

    def encode(self, line: str, language: str | None = None) -> list[int]:
        self.check_language(language)
        if not 3 <= len(line) <= 8 or not set(line) <= set(self.letters):
            raise TaskError(
                f"a word must be 3 to 8 of the letters {self.letters}. Received: {line}"
            )
        return [self.letters.index(letter) + FIRST for letter in line]

    def decode(self, rows: Any) -> list[str]:
        return ["".join(self.source_labels(row)) for row in rows]

    def source_labels(self, ids: Any) -> list[str]:
        return [self.letters[i - FIRST] for i in map(int, ids) if i >= FIRST]

    target_labels = source_labels
