"""The task of writing numbers in words."""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from heed.errors import UsageError
from heed.number_checks import check_integer
from heed.seq2seq.options.user_values import split_names
from heed.seq2seq.tasks import number_words
from heed.seq2seq.tasks.task import Batch, Item, Option, Reading, Task, pad_rows
from heed.seq2seq.tokens.tokenizer import RESERVED, Tokenizer

_TOKENIZER_SAMPLE = 8_000  # numbers whose words teach the tokenizer, and bound the length
_VALIDATION_BATCH = 256
_LONGEST_SOURCE = 1 + len(str(number_words.LARGEST))
_SHORT = 1_000  # all numbers below are evaluated, too


class NumbersTask(Task):
    """Numbers from 0 to 999,999 in digits to words, in one or several languages.

    The source is the language, then the digits, units first: so the position of a digit is its place value, whatever
    the length of the number, which takes a third fewer steps to learn than reading order.

    The recipe: pre-norm Transformer of 2 + 2 layers and width 128, batches of 64, 600 steps, 1,000 for several
    languages; the rate warms up to 3e-3 for a third of them and falls to zero along half a cosine.

    Args:
        languages: some of "en", "de", "fr", "es", or their names with commas between; batches hold them in equal parts.
        words: the tokenizer of the words; None learns one from training numbers.
        longest_target: the most tokens that a number may take; 0 measures it.

    Raises:
        TaskError: for an unknown language, or without the num2words or sentencepiece library.

    Example:
        >>> task = NumbersTask(("en",))
        >>> batch = task.training_batch(seed=0, step=0, size=2)
        >>> task.decode(batch.target)[0] == number_words.spell(int("".join(
        ...     reversed(task.source_labels(batch.source[0])[1:]))))
        True
    """

    kind = title = "numbers"
    purpose = f"Writes numbers from 0 to {number_words.LARGEST:,} in words."
    examples = ("42", "1,234", "508,016")
    options = (
        Option(
            "languages",
            split_names,
            f"numbers: some of {','.join(number_words.LANGUAGES)} (default: en)",
        ),
    )
    one_shape = True
    reads = Reading("digits")

    def __init__(
        self,
        languages: str | Sequence[str] = ("en",),
        words: Tokenizer | None = None,
        longest_target: int = 0,
    ) -> None:
        self.languages = number_words.check_languages(languages)
        self._source_names = [*[""] * RESERVED, *string.digits, *self.languages]  # by id
        sample = [] if words and longest_target else self._draw_sample()
        # About 60 pieces a language make most words single tokens: short targets train fastest.
        self.subwords = words or Tokenizer.train(sample, 40 + 56 * len(self.languages))
        self.source_vocabulary_size = len(self._source_names)
        self.target_vocabulary_size = self.subwords.vocabulary_size
        # Two more than seen in the sample, for rare words.
        self.longest_target = longest_target or 2 + max(map(len, self.subwords.encode(sample)))

    @classmethod
    def create(cls, languages: str | Sequence[str] = ("en",)) -> NumbersTask:
        return cls(languages)

    @classmethod
    def load(cls, config: Mapping[str, Any], read: Callable[[str], bytes]) -> NumbersTask:
        words = Tokenizer(read("target.model"))
        longest = check_integer("longest_target", config["longest_target"], least=1)
        return cls(config["languages"], words, longest)

    @property
    def recipe(self) -> dict[str, Any]:
        return {"steps": 600 if len(self.languages) == 1 else 1_000}

    @property
    def description(self) -> str:
        return (
            f"numbers 0 to {number_words.LARGEST:,} in {', '.join(self.languages)}, "
            "one in twenty held out"
        )

    def _draw_sample(self) -> list[str]:
        chosen = number_words.training_numbers(0, -1, _TOKENIZER_SAMPLE // len(self.languages))
        return [number_words.spell(int(n), language) for language in self.languages for n in chosen]

    def _encode_number(self, number: int, language: str) -> list[int]:
        return [self._source_names.index(name) for name in (language, *reversed(str(number)))]

    def _make_batch(self, pairs: Sequence[tuple[int, str]]) -> Batch:
        source = [self._encode_number(n, language) for n, language in pairs]
        target = self.subwords.encode([number_words.spell(n, language) for n, language in pairs])
        # One shape for all batches: TensorFlow compiles the step once.
        return Batch(pad_rows(source, _LONGEST_SOURCE), pad_rows(target, self.longest_target))

    def training_batch(self, seed: int, step: int, size: int, tokens: int = 0) -> Batch:
        """Return the batch of a step: `size` numbers, the languages in turn."""
        if tokens:
            raise UsageError("batches of numbers have one size: leave out --batch-tokens")
        chosen = number_words.training_numbers(seed, step, size).tolist()
        # Shifted by one in each round of lengths, so that each length comes in each language.
        turns = [
            place + place // number_words.ROUND for place in range(step * size, (step + 1) * size)
        ]
        languages = [self.languages[turn % len(self.languages)] for turn in turns]
        return self._make_batch(list(zip(chosen, languages, strict=True)))

    def validation_batches(self) -> list[Batch]:
        chosen = number_words.validation_numbers().tolist()
        pairs = list(zip(chosen, itertools.cycle(self.languages), strict=False))
        return [
            self._make_batch(pairs[i : i + _VALIDATION_BATCH])
            for i in range(0, len(pairs), _VALIDATION_BATCH)
        ]

    def evaluation_items(self) -> list[Item]:
        """Return the 2,000 held-out evaluation numbers in each language; the language is the group."""
        return self._make_items(number_words.evaluation_numbers().tolist())

    def extra_evaluations(self) -> dict[str, list[Item]]:
        """Return all numbers below 1,000, which people try first, in each language; most are trained on."""
        return {f"numbers below {_SHORT:,}": self._make_items(range(_SHORT))}

    def _make_items(self, chosen: Iterable[int]) -> list[Item]:
        return [
            Item(self._encode_number(n, lang), f"{n:,}", number_words.spell(n, lang), lang)
            for lang in self.languages
            for n in chosen
        ]

    def encode(self, line: str, language: str | None = None) -> list[int]:
        """Return the source ids of "1234", "1 2 3 4" or "1,234"; in the first language by default."""
        self.check_language(language)
        return self._encode_number(number_words.parse_number(line), language or self.languages[0])

    def source_labels(self, ids: Iterable[int]) -> list[str]:
        """Return the language, then the digits, units first; padding is left out."""
        return [self._source_names[i] for i in map(int, ids) if i >= RESERVED]

    def reading_order(self, ids: Sequence[int]) -> list[int]:
        return [0, *range(len(ids) - 1, 0, -1)]

    def source_words(self, ids: Sequence[int]) -> tuple[list[int | None], list[str]]:
        """Take each digit for a word; the language is not text."""
        digits = self.source_labels(ids)[1:]
        return [None, *range(len(digits) - 1, -1, -1)], digits[::-1]

    def to_config(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "languages": list(self.languages),
            "longest_target": self.longest_target,
        }

    def files(self) -> dict[str, bytes]:
        return {"target.model": self.subwords.model}
