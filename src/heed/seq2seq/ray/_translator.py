"""Translates a column in a pipeline of Ray Data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heed.errors import TaskError
from heed.ray_connection import count_assigned_threads
from heed.seq2seq.options.decoding import DecodingOptions
from heed.seq2seq.runs.run_folder import RunFolder


class Translator:
    """Translates a column of each batch, for `map_batches`. Each actor loads the model once.

    The batch keeps its columns and gets two more: the translations, and the problems. A text that cannot be translated
    has an empty translation, and its problem says why; a problem also says that a translation was cut. All other
    problems are empty.

    Args:
        run: the run folder, which every node can read.
        source: the column to translate.
        target: the column of the translations.
        problem: the column of the problems.
        language: the target language; None takes the run's first.
        prefix: the beginning of each translation; or None.
        ensemble: runs that translate with it.
        threads: threads to compute with; None: the `num_cpus` of the actor.
        batch_size: texts translated together, 1 or more.
        **options: fields of `DecodingOptions` except `n_best` and `scores`.

    Raises:
        TaskError: if the run or an option cannot be used.

    Example:
        >>> ds = ray.data.read_text("corpus/")  # doctest: +SKIP
        >>> ds = ds.map_batches(
        ...     Translator, fn_constructor_kwargs={"run": "/shared/german", "beam_size": 4}, concurrency=2, num_cpus=1
        ... )  # doctest: +SKIP
        >>> ds.write_parquet("out/")  # doctest: +SKIP
    """

    def __init__(
        self,
        run: Path | str,
        *,
        source: str = "text",
        target: str = "translation",
        problem: str = "problem",
        language: str | None = None,
        prefix: str | None = None,
        ensemble: Sequence[Path | str] = (),
        threads: int | None = None,
        batch_size: int = 64,
        **options: Any,
    ) -> None:
        columns = [source, target, problem]
        if len(set(columns)) < 3:
            raise TaskError(
                f"`source`, `target` and `problem` must be three columns. Received: {columns}"
            )
        for name in ("n_best", "scores"):
            if name in options:
                raise TaskError(f"`{name}` is not for a column: each text has one translation")
        chosen = DecodingOptions(**options)
        folder = RunFolder.open(run)
        task = folder.task()
        task.check_language(language)
        if prefix is not None:
            task.encode_prefix(prefix)
        from heed.seq2seq.tensorflow_start import start_tensorflow

        start_tensorflow(count_assigned_threads() if threads is None else threads)
        from heed.seq2seq.translating import translator

        others = [RunFolder.open(one) for one in ensemble]
        self._translator = translator.Translator(folder, options=chosen, others=others)
        self._source, self._target, self._problem = columns
        self._language, self._prefix, self._batch_size = language, prefix, batch_size

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Translate a batch.

        Args:
            batch: its columns by name: a dictionary of arrays, or a data frame of pandas.

        Raises:
            TaskError: if the source column is missing, or a new one exists already.
        """
        from heed.seq2seq.translating.translator import describe_cut, translate_stream

        columns = {str(name): batch[name] for name in batch}
        if self._source not in columns:
            raise TaskError(f"there is no column {self._source!r}. Received: {list(columns)}")
        for name in (self._target, self._problem):
            if name in columns:
                raise TaskError(f"the column {name!r} exists already: choose another name")
        texts = list(columns[self._source])
        problems = ["" if isinstance(text, str) else _describe(text) for text in texts]

        def note(text: str) -> None:
            number, _, reason = text.removeprefix("line ").partition(": ")
            problems[int(number.replace(",", "")) - 1] = reason

        lines = [text if isinstance(text, str) else "" for text in texts]
        stream = translate_stream(
            self._translator, lines, note, self._language, self._batch_size, self._prefix
        )
        translations = []
        for number, several in enumerate(stream):
            translations.append(several[0].text if several else "")
            problems[number] = problems[number] or describe_cut(several)
        return {
            **columns,
            self._target: np.array(translations, object),
            self._problem: np.array(problems, object),
        }


def _describe(value: object) -> str:
    return "it is missing" if value is None else f"it is no text: {value!r}"
