"""Translates batches of texts on the worker thread of a server."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from heed.errors import TaskError
from heed.inspect.drawing import drawing_of
from heed.seq2seq.options.decoding import DecodingOptions
from heed.seq2seq.serving._messages import Attention, Hypothesis, TranslatedText
from heed.seq2seq.translating.attention import AttentionReader
from heed.seq2seq.translating.translator import Translation, Translator

# Texts in a batch with attention, which takes as long as decoding several texts.
_READ_AT_ONCE = 4


class Text(NamedTuple):
    """A text to translate."""

    text: str
    language: str | None = None
    n_best: int = 1
    # Of a streamed translation: takes each piece, and returns whether anyone wants more.
    write: Callable[[str], bool] | None = None


@dataclass(frozen=True)
class Mode:
    """How to translate texts; those of one mode may share a batch."""

    run: str
    options: DecodingOptions
    attention: bool = False
    alignment: bool = False
    stream: bool = False


class Translations:
    """Translates batches of texts with one of several runs, at most `max_batch` hypotheses together."""

    def __init__(self, translators: Mapping[str, Translator], max_batch: int) -> None:
        self.translators = dict(translators)
        self._readers: dict[str, AttentionReader] = {}
        for name, translator in self.translators.items():
            with contextlib.suppress(TaskError):  # a model without attention has none to show
                self._readers[name] = AttentionReader(translator)
        self._max_batch = max_batch

    def size(self, mode: Mode) -> int:
        """Return the most texts to translate together."""
        if mode.stream:
            return 1
        size = max(1, self._max_batch // mode.options.beam_size)
        return min(size, _READ_AT_ONCE) if mode.attention else size

    def __call__(self, mode: Mode, texts: Sequence[Text]) -> list[TranslatedText | Exception]:
        """Translate the texts; a text that fails yields its exception in its place."""
        if mode.stream:
            return [self._stream(mode, one) for one in texts]
        translator = self.translators[mode.run]
        results: list[TranslatedText | Exception] = []
        rows: dict[int, list[int]] = {}
        for place, one in enumerate(texts):
            results.append(_blank(one))
            try:
                if one.text.strip():
                    rows[place] = translator.task.encode(one.text, one.language)
                else:
                    translator.task.check_language(one.language)
            except TaskError as error:
                results[place] = error
        hypotheses = translator.search(
            list(rows.values()),
            options=_request_whole_beam(mode.options),
            alignments=mode.alignment,
        )
        for (place, row), several in zip(rows.items(), hypotheses, strict=True):
            results[place] = self._translation(mode, texts[place], row, several)
        return results

    def _stream(self, mode: Mode, one: Text) -> TranslatedText | Exception:
        """Write the pieces of a translation; return all of it, or its error."""
        translator = self.translators[mode.run]
        try:
            if not one.text.strip():
                translator.task.check_language(one.language)
                return _blank(one)
            row = translator.task.encode(one.text, one.language)
        except TaskError as error:
            return error
        with contextlib.closing(
            translator.stream_row(row, options=mode.options, alignments=mode.alignment)
        ) as pieces:
            while True:
                try:
                    piece = next(pieces)
                except StopIteration as end:
                    return self._translation(mode, one, row, [end.value])
                if one.write is None or not one.write(piece):
                    return TranslatedText(text="")  # nobody waits for it

    def _translation(
        self, mode: Mode, one: Text, row: list[int], translations: list[Translation]
    ) -> TranslatedText:
        # A beam that met fewer sequences than it is wide ends with impossible ones.
        translations = [each for each in translations if each.score != -math.inf][: one.n_best]
        answers = [
            Hypothesis(
                text=each.text,
                score=each.score or 0.0,
                cut=each.cut or None,
                alignment=None if each.alignment is None else str(each.alignment),
                attention=self._attention(mode, one, row, each.ids),
            )
            for each in translations
        ]
        best = answers[0]
        if one.n_best > 1:
            return TranslatedText(text=best.text, cut=best.cut, hypotheses=answers)
        return TranslatedText(
            text=best.text, cut=best.cut, alignment=best.alignment, attention=best.attention
        )

    def _attention(
        self, mode: Mode, one: Text, source: list[int], target: list[int]
    ) -> Attention | None:
        if not mode.attention or mode.run not in self._readers:
            return None
        seen = self._readers[mode.run](one.text, one.language, source, target)
        return Attention(**drawing_of(seen.capture, seen.tokens))

    def warm_up(self, options: DecodingOptions) -> None:
        """Compile for requests with these options, for any number and length of texts."""
        for name, translator in self.translators.items():
            translator.warm_up(options=_request_whole_beam(options))
            if name in self._readers:
                self._readers[name].warm_up()


def _blank(one: Text) -> TranslatedText:
    """Return the translation of a blank text."""
    return TranslatedText(text="", hypotheses=[] if one.n_best > 1 else None)


def _request_whole_beam(options: DecodingOptions) -> DecodingOptions:
    """Return options that return the whole beam: one compiled program for each width."""
    if options.beam_size == 1:
        return options
    return dataclasses.replace(options, n_best=options.beam_size, scores=True)
