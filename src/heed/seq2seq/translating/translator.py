"""Translates with a trained run."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from heed.decoding.pieces import UnstableTextError, write_pieces
from heed.errors import TaskError, UsageError
from heed.models import Ensemble, explain_generate, generate, stream
from heed.seq2seq.options.decoding import DecodingOptions
from heed.seq2seq.runs.run_folder import RunFolder
from heed.seq2seq.runs.trained_model import are_finite, load_model, make_divergence_error
from heed.seq2seq.tasks.task import Task, pad_rows
from heed.seq2seq.tokens.tokenizer import END_ID, PAD_ID, START_ID
from heed.seq2seq.translating.alignment import Alignment, align

_PERPLEXITY_BATCH = 16  # pairs; all their logits are in memory
_MULTIPLE = 8  # sources are padded to a multiple of this, so that few shapes are compiled


@dataclasses.dataclass(frozen=True)
class Translation:
    """One translation of a line.

    Args:
        text: the translation.
        ids: its tokens, then padding; only padding if a search found no further sequence.
        score: its log-probability, see `heed.models.generate`; None if scores are not requested.
        alignment: its word alignment; None if it is not requested.
    """

    text: str
    ids: list[int]
    score: float | None = None
    alignment: Alignment | None = None

    @property
    def cut(self) -> bool:
        """Whether it ends because it has the most tokens, not with the end."""
        return is_cut(self.ids)


class Translator:
    """A run's model, ready to translate.

    Args:
        run: the run folder; unfinished runs translate with their newest checkpoint.
        warn: called with a line for each newer checkpoint that is damaged.
        options: decoding options; None decodes greedily.
        others: runs that translate with it, as a `heed.models.Ensemble`. Alignments are those of the first run.

    Raises:
        TaskError: if a run has no weights yet, is damaged, or has other tokens than the first.

    Example:
        >>> Translator(RunFolder.open("heed-runs/numbers"))(["1 2"])  # doctest: +SKIP
        ['twelve']
    """

    def __init__(
        self,
        run: RunFolder,
        warn: Callable[[str], object] = warnings.warn,
        options: DecodingOptions | None = None,
        others: Sequence[RunFolder] = (),
    ) -> None:
        self.run = run
        self.options = options or DecodingOptions()
        self._batches = 0
        self.task = run.task()
        for other in others:
            if _identify_tokens(other.task()) != _identify_tokens(self.task):
                raise TaskError(
                    f"{other.path} and {run.path} cannot translate together: their tokens differ"
                )
        self.model, self.weights = load_model(run, warn)
        self._decoded: Any = self.model
        companions = [(str(other.path), *load_model(other, warn)) for other in others]
        self._other_weights = [{"run": path, "weights": weights} for path, _, weights in companions]
        if companions:
            self._decoded = Ensemble([self.model, *(model for _, model, _ in companions)])
        if self.options.coverage_penalty and not self._decoded.aligns:
            raise UsageError(
                f"`coverage_penalty` must be 0 for {run.path}, which has no attention to its source. "
                f"Received: {self.options.coverage_penalty}"
            )
        if self.options.weights != "float32":
            explanation = explain_generate(
                self._decoded,
                method=self.options.method,
                beam_size=self.options.beam_size,
                coverage_penalty=self.options.coverage_penalty,
            )
            if explanation.implementation != "engine":
                raise UsageError(
                    f"`weights` must be 'float32' for {run.path}: {'; '.join(explanation.reasons)}. "
                    f"Received: {self.options.weights!r}"
                )

    @property
    def step(self) -> int:
        """The training step of the loaded weights."""
        return int(self.weights["step"])

    def describe(self) -> dict[str, Any]:
        """Return the settings that affect translations, as JSON-ready values: weights, options, and the other runs."""
        return {
            "weights": self.weights,
            "decoding": dataclasses.asdict(self.options),
            "ensemble": self._other_weights,
        }

    def __call__(self, lines: Sequence[str], language: str | None = None) -> list[str]:
        """Translate each line.

        Args:
            lines: texts to translate.
            language: one of the run's languages, if it has some; None takes the first.

        Raises:
            TaskError: if a line cannot be translated; the message says why.
        """
        rows = [self.task.encode(line, language) for line in lines]
        return self.task.decode(self.decode(rows))

    def translations(
        self,
        lines: Sequence[str],
        language: str | None = None,
        prefix: str | None = None,
        options: DecodingOptions | None = None,
        alignments: bool = False,
    ) -> list[list[Translation]]:
        """Return the `n_best` translations of each line, best first, or as they were sampled; with scores if requested.

        Args:
            lines: texts to translate.
            language: one of the run's languages, if it has some; None takes the first.
            prefix: the beginning of each translation, in whole words; or None.
            options: decoding options; None takes the translator's.
            alignments: whether to align words.

        Raises:
            TaskError: if a line cannot be translated, or the prefix leaves no room for a translation.
        """
        rows = [self.task.encode(line, language) for line in lines]
        start = [] if prefix is None else self.task.encode_prefix(prefix)
        return self.search(rows, start, options, alignments=alignments)

    def search(
        self,
        rows: Sequence[Sequence[int]],
        prefix: Sequence[int] = (),
        options: DecodingOptions | None = None,
        batch_size: int = 500,
        alignments: bool = False,
    ) -> list[list[Translation]]:
        """Return the same for rows of source ids and a prefix of target ids.

        Raises:
            TaskError: if the prefix leaves no room for a translation.
        """
        results = self._decode(rows, batch_size, prefix, options or self.options)
        pairs = [
            (row, ids) for row, (of_row, _) in zip(rows, results, strict=True) for ids in of_row
        ]
        texts = iter(self.task.decode([ids for _, ids in pairs]))
        aligned: Iterator[Alignment | None] = itertools.repeat(None)
        if alignments and pairs:
            aligned = iter(align(self.model, self.task, *zip(*pairs, strict=True)))
        return [
            [
                Translation(next(texts), ids, score, next(aligned))
                for ids, score in zip(of_row, scores, strict=True)
            ]
            for of_row, scores in results
        ]

    def stream(
        self,
        line: str,
        language: str | None = None,
        prefix: str | None = None,
        options: DecodingOptions | None = None,
        alignments: bool = False,
    ) -> Generator[str, None, Translation]:
        """Translate a line and yield its translation in pieces, as they are decoded.

        The pieces join to the text that `translations` gives, exactly. A piece is seldom a word: it ends where a token
        ends, unless spaces or an unfinished character follow. A reader who stops early stops the decoding.

        Args:
            line, language, prefix, alignments: as for `translations`; the prefix is in the first piece.
            options: decoding options; None takes the translator's.

        Yields:
            Pieces of text, none of them empty.

        Returns:
            The `Translation`, without a score, as the value of the generator.

        Raises:
            TaskError: if the line cannot be translated, the prefix leaves no room, or the options ask for a beam search
                or for several translations.
        """
        row = self.task.encode(line, language)
        start = [] if prefix is None else self.task.encode_prefix(prefix)
        return self.stream_row(row, start, options, alignments)

    def stream_row(
        self,
        row: Sequence[int],
        prefix: Sequence[int] = (),
        options: DecodingOptions | None = None,
        alignments: bool = False,
    ) -> Generator[str, None, Translation]:
        """Return the same for a row of source ids and a prefix of target ids."""
        options = options or self.options
        if options.method == "beam" or options.n_best > 1:
            given = f"beam_size={options.beam_size}, n_best={options.n_best}"
            raise TaskError(
                "a stream is of one translation, and of no beam search, which may replace any word until it ends. "
                f"Received: {given}"
            )
        self._check_prefix(prefix, options)
        source = pad_rows([row], multiple=_MULTIPLE)
        arguments = self._arguments(1, prefix, dataclasses.replace(options, scores=False))
        tokens = stream(self._decoded, source, **arguments)
        return self._write_pieces(row, prefix, tokens, alignments)

    def _write_pieces(
        self,
        row: Sequence[int],
        prefix: Sequence[int],
        tokens: Generator[int, None, None],
        alignments: bool,
    ) -> Generator[str, None, Translation]:
        try:
            whole, ids = yield from write_pieces(tokens, lambda x: self.task.decode([x])[0], prefix)
        except UnstableTextError as problem:
            raise TaskError(f"`decode` of {self.task.title} {problem}") from None
        aligned = align(self.model, self.task, [row], [ids])[0] if alignments else None
        return Translation(whole, ids, alignment=aligned)

    def warm_up(self, prefix: Sequence[int] = (), options: DecodingOptions | None = None) -> None:
        """Compile decoding for rows of any number and length, without changing later samples."""
        batches, options = self._batches, options or self.options
        for rows in ([[END_ID]], [[END_ID] * 9] * 2):  # TensorFlow generalises from two sizes
            self._decode(rows, len(rows), prefix, options)
            if options.method != "beam" and options.n_best == 1:
                for _ in self.stream_row(rows[0], prefix, options):
                    pass
        self._batches = batches

    def continue_seeds(self, batches: int) -> None:
        """Sample from here on as after this number of batches, 0 or more; each batch has its own seed."""
        self._batches = batches

    def decode(
        self,
        rows: Sequence[Sequence[int]],
        batch_size: int = 500,
        options: DecodingOptions | None = None,
    ) -> list[list[int]]:
        """Return the target ids of rows of source ids, the best of several.

        Rows of similar length are decoded together: a batch runs until its longest target ends.

        Args:
            rows: source ids.
            batch_size: rows decoded at once.
            options: decoding options; None takes the translator's.

        Returns:
            A list of target ids for each row, in the order of `rows`.
        """
        return [ids[0] for ids, _ in self._decode(rows, batch_size, (), options or self.options)]

    def perplexity(self, rows: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> float:
        """Return the perplexity of given translations: `exp(-mean log p(token))` over all tokens, ends included.

        Args:
            rows: source ids.
            targets: target ids of each, the end included, cut to the longest translation of the task.

        Returns:
            1 or more; the size of the target vocabulary if all tokens are equally likely. It depends on the vocabulary:
            compare only runs that share one.
        """
        total, count = 0.0, 0
        order = sorted(range(len(rows)), key=lambda i: len(targets[i]))
        for at in range(0, len(order), _PERPLEXITY_BATCH):
            part = order[at : at + _PERPLEXITY_BATCH]
            expected = pad_rows([targets[i][: self.task.longest_target] for i in part])
            read = np.pad(expected[:, :-1], ((0, 0), (1, 0)), constant_values=START_ID)
            source = self._decoded.check_source(pad_rows([rows[i] for i in part]))
            logits = np.asarray(self._decoded.decode_all(read, self._decoded.encode_source(source)))
            highest = logits.max(-1, keepdims=True)
            log_sums = np.log(np.exp(logits - highest).sum(-1)) + highest[..., 0]
            own = np.take_along_axis(logits, expected[..., None], -1)[..., 0] - log_sums
            total += float(own[expected != PAD_ID].sum(dtype=np.float64))
            count += int((expected != PAD_ID).sum())
        return float(np.exp(-total / max(count, 1)))

    def _decode(
        self,
        rows: Sequence[Sequence[int]],
        batch_size: int,
        prefix: Sequence[int],
        options: DecodingOptions,
    ) -> list[tuple[list[list[int]], list[float | None]]]:
        """Return the target ids of all results of each row, and their scores."""
        self._check_prefix(prefix, options)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        out: list[Any] = [None] * len(rows)
        for start in range(0, len(order), batch_size):
            part = order[start : start + batch_size]
            # All batches have one size: each size is compiled.
            filled = part + part[:1] * (min(batch_size, len(rows)) - len(part))
            source = pad_rows([rows[i] for i in filled], multiple=_MULTIPLE)
            results = generate(
                self._decoded, source, **self._arguments(len(filled), prefix, options)
            )
            tokens, scores = results if options.scores else (results, None)
            several = np.asarray(tokens).reshape(len(filled), options.n_best, -1).tolist()
            values = [[None] * options.n_best] * len(filled)
            if scores is not None:
                array = np.asarray(scores).reshape(len(filled), options.n_best)
                if not are_finite([array[:, :1]]):
                    raise make_divergence_error(self.run, "a translation has no finite score")
                values = array.tolist()
            for i, *one in zip(part, several, values, strict=False):
                out[i] = tuple(one)
        return out

    def _check_prefix(self, prefix: Sequence[int], options: DecodingOptions) -> None:
        most = options.max_length or self.task.longest_target
        if len(prefix) >= most:
            raise UsageError(
                f"a prefix must have fewer than the {most:,} tokens of a translation. "
                f"Received: {len(prefix):,}"
            )

    def _arguments(
        self, rows: int, prefix: Sequence[int], options: DecodingOptions
    ) -> dict[str, Any]:
        """Return the arguments of `generate` or `stream` for the next batch, of so many rows."""
        arguments = options.arguments(self._batches, self.task.longest_target)
        if len(prefix):
            arguments["prompt"] = np.tile(np.asarray(prefix, np.int32), (rows, 1))
        self._batches += 1
        return arguments


def is_cut(ids: Sequence[int]) -> bool:
    """Return whether a translation was cut: it has tokens and no end.

    Example:
        >>> is_cut([7, 5]), is_cut([7, END_ID, PAD_ID]), is_cut([PAD_ID, PAD_ID])
        (True, False, False)
    """
    return END_ID not in ids and any(i != PAD_ID for i in ids)


def describe_cut(translations: Sequence[Translation]) -> str:
    """Describe that translations of a line were cut; "" if none was."""
    lengths = [sum(i != PAD_ID for i in one.ids) for one in translations if one.cut]
    if not lengths:
        return ""
    what = "the translation is" if len(translations) == 1 else f"{len(lengths):,} translations are"
    return f"{what} cut at {max(lengths):,} tokens: --max-length allows more"


def _identify_tokens(task: Task) -> tuple[Any, ...]:
    """Return the meaning of all ids, which must agree in runs that translate together."""
    models = {name: data for name, data in task.files().items() if name.endswith(".model")}
    return task.kind, task.languages, task.source_vocabulary_size, models


def translate_stream(
    translator: Translator,
    lines: Iterable[str],
    report: Callable[[str], object],
    language: str | None = None,
    batch_size: int = 64,
    prefix: str | None = None,
    alignments: bool = False,
    first: int = 1,
) -> Iterator[list[Translation]]:
    """Translate lines as they come: output keeps in step with input.

    Args:
        translator, language, prefix, alignments: as for `Translator.translations`.
        lines: with or without line ends; the number of the first is `first`.
        report: called with the number and the problem of each line that cannot be translated.
        batch_size: lines to wait for; 1 answers each line at once.

    Yields:
        The translations of each line, none if it is empty or cannot be translated.
    """
    task = translator.task
    start = [] if prefix is None else task.encode_prefix(prefix)

    def encode(number: int, line: str) -> list[int] | None:
        if line.strip():
            try:
                return task.encode(line.rstrip("\r\n"), language)
            except TaskError as error:
                report(f"line {number:,}: {error}")
        return None

    numbered = enumerate(lines, first)
    while rows := [encode(*line) for line in itertools.islice(numbered, batch_size)]:
        known = [row for row in rows if row is not None]
        translations = iter(translator.search(known, start, alignments=alignments))
        yield from ([] if row is None else next(translations) for row in rows)
