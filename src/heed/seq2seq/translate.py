"""Translating with a trained run."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from heed.models import generate
from heed.seq2seq.decoding_options import DecodingOptions
from heed.seq2seq.errors import TaskError
from heed.seq2seq.run_folder import RunFolder
from heed.seq2seq.task import padded
from heed.seq2seq.trained_model import trained_model

_MULTIPLE = 8  # sources are padded to a multiple of this, so that few shapes are compiled


class Translator:
    """A run's model, ready to translate.

    Args:
        run: the run folder; unfinished runs translate with their newest checkpoint.
        say: is called with a line for each newer checkpoint that is damaged.
        options: how translations are chosen. None takes the likeliest token in each step.

    Raises:
        TaskError: if the run has no weights yet, or is damaged.

    Example:
        >>> Translator(RunFolder.open("heed-runs/numbers"))(["1 2"])  # doctest: +SKIP
        ['twelve']
    """

    def __init__(
        self,
        run: RunFolder,
        say: Callable[[str], object] = warnings.warn,
        options: DecodingOptions | None = None,
    ) -> None:
        self.run = run
        self.options = options or DecodingOptions()
        self._batches = 0
        self.task = run.task()
        self.model, self.step = trained_model(run, say)

    def __call__(self, lines: Sequence[str], language: str | None = None) -> list[str]:
        """The translation of each line.

        Args:
            lines: what to translate.
            language: for numbers: which of the run's languages; None takes the first.

        Raises:
            TaskError: if a line cannot be translated; the message says why.
        """
        rows = [self.task.encode(line, language) for line in lines]
        return self.task.decode(self.decode(rows))

    def decode(self, rows: Sequence[Sequence[int]], batch_size: int = 500) -> list[list[int]]:
        """The target ids of rows of source ids.

        Rows of like length are decoded together: a batch goes on until its longest target ends.

        Args:
            rows: source ids.
            batch_size: how many rows are decoded at once.

        Returns:
            A list of target ids for each row, in the order of `rows`.
        """
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        out: list[list[int]] = [[] for _ in rows]
        for start in range(0, len(order), batch_size):
            part = order[start : start + batch_size]
            # One size of batch for all: each size is compiled anew.
            filled = part + part[:1] * (min(batch_size, len(rows)) - len(part))
            source = padded([rows[i] for i in filled], multiple=_MULTIPLE)
            options = self.options.arguments(self._batches, self.task.longest_target)
            found = generate(self.model, source, **options)
            self._batches += 1
            for i, ids in zip(part, np.asarray(found).tolist(), strict=False):
                out[i] = ids
        return out


def translate_stream(
    translator: Translator,
    lines: Iterable[str],
    report: Callable[[str], object],
    language: str | None = None,
    batch_size: int = 64,
) -> Iterator[str]:
    """Translations of lines as they come, one for each: output keeps in step with input.

    Args:
        translator: what translates.
        lines: lines with or without line ends.
        report: is called with what is wrong with a line that cannot be translated, and its number.
        language: as for :class:`Translator`.
        batch_size: how many lines to wait for; 1 answers each line at once.

    Yields:
        The translation of each line; an empty line for an empty one, and for one that cannot be
        translated.
    """
    task = translator.task

    def encoded(number: int, line: str) -> list[int] | None:
        if line.strip():
            try:
                return task.encode(line.rstrip("\r\n"), language)
            except TaskError as error:
                report(f"line {number:,}: {error}")
        return None

    numbered = enumerate(lines, 1)
    while rows := [encoded(*line) for line in itertools.islice(numbered, batch_size)]:
        said = iter(task.decode(translator.decode([row for row in rows if row is not None])))
        yield from ("" if row is None else next(said) for row in rows)
