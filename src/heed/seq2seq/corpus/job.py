"""The settings of a corpus translation; translates one shard."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heed import __version__
from heed.errors import TaskError
from heed.files import open_regular, sha256_of
from heed.seq2seq.corpus.inputs import Shard
from heed.seq2seq.options.decoding import DecodingOptions
from heed.seq2seq.runs.run_folder import RunFolder
from heed.seq2seq.translating.opening import open_translator

if TYPE_CHECKING:
    from heed.seq2seq.translating.translator import Translation

# Byte tokens may spell a line break, which would start another line.
_NO_BREAKS = str.maketrans("\r\n", "  ")


@dataclass(frozen=True)
class LineFormat:
    """The output for a line of input: columns separated by tabs."""

    # translations of each line, each on a line of its own after the number of the input's; None: one, without the
    # number
    n_best: int | None = None
    scores: bool = False  # whether the score comes before the translation
    alignments: bool = False  # whether the alignment comes after it

    def format(self, number: int, translations: Sequence[Translation]) -> list[str]:
        """Return the output for line `number`, always as many lines; empty ones if there are no translations."""
        lines = []
        for rank in range(self.n_best or 1):
            one = translations[rank] if translations else None
            columns = [] if self.n_best is None else [str(number)]
            if self.scores:
                columns.append("" if one is None else f"{one.score:.4f}")
            text = "" if one is None else one.text.translate(_NO_BREAKS)
            after = [str((one and one.alignment) or "")] if self.alignments else []
            if columns or after:
                text = text.replace("\t", " ")
            lines.append("\t".join([*columns, text, *after]))
        return lines


@dataclass(frozen=True)
class Job:
    """Which run translates, and how."""

    run: Path  # the run folder; the run is finished
    options: DecodingOptions = field(default_factory=DecodingOptions)  # decoding options
    ensemble: tuple[Path, ...] = ()  # runs that translate with it
    language: str | None = None  # the target language; None takes the run's first
    prefix: str | None = None  # the beginning of each translation; or None
    line_format: LineFormat = field(default_factory=LineFormat)  # the output for a line
    batch_size: int = 64  # lines translated together, 1 or more
    shard_lines: int = 1_000  # lines of a shard, 1 or more

    def check(self) -> None:
        """Check what can be checked without the model.

        Raises:
            TaskError: if a run is damaged or not finished, or does not know the language or the prefix.
        """
        for path in (self.run, *self.ensemble):
            if not RunFolder.open(path).weights.exists():
                raise TaskError(
                    f"{path} is not finished, and its weights may change while a corpus is translated: finish it "
                    f"with: heed train --resume {path}"
                )
        task = RunFolder.open(self.run).task()
        task.check_language(self.language)
        if self.prefix is not None:
            task.encode_prefix(self.prefix)

    def describe(self) -> dict[str, Any]:
        """Return the settings that affect the output, as JSON-ready values."""
        values = dataclasses.asdict(self.options) | dataclasses.asdict(self.line_format)
        paths = (self.run, *self.ensemble)
        return {
            "heed": __version__,
            "run_weights": [_hash_weights(path) for path in paths],
            "language": self.language,
            "prefix": self.prefix,
            "batch_size": self.batch_size,
            "shard_lines": self.shard_lines,
            **values,
        }


@dataclass(frozen=True)
class ShardResult:
    """The translation of a shard, by the same file and number."""

    file: int
    number: int
    lines: int  # of input
    output: bytes = field(repr=False)
    problems: tuple[str, ...] = ()  # one for each line that could not be translated
    cut: tuple[str, ...] = ()  # one for each line whose translation was cut at the most tokens


class ShardTranslator:
    """Translates shards; loads the model once.

    Args:
        job: the run and the settings.
        threads: threads to compute with; None: as many as TensorFlow takes.
        warn: called with a line for each problem that is not fatal.
    """

    def __init__(
        self, job: Job, threads: int | None = None, warn: Callable[[str], object] = print
    ) -> None:
        self._job = job
        self._translator = open_translator(job.run, warn, job.options, job.ensemble, threads)

    def __call__(self, shard: Shard) -> ShardResult:
        """Translate a shard; the result does not depend on other shards."""
        from heed.seq2seq.translating.translator import describe_cut, translate_stream

        job = self._job
        # Each shard draws its own samples, in whatever order shards come.
        self._translator.continue_seeds(shard.first_line)
        problems: list[str] = []
        cut: list[str] = []
        output: list[str] = []
        lines = shard.lines()
        stream = translate_stream(
            self._translator,
            lines,
            problems.append,
            job.language,
            job.batch_size,
            job.prefix,
            job.line_format.alignments,
            shard.first_line,
        )
        for number, translations in enumerate(stream, shard.first_line):
            output += job.line_format.format(number, translations)
            if what := describe_cut(translations):
                cut.append(f"line {number:,}: {what}")
        data = "".join(f"{line}\n" for line in output).encode()
        return ShardResult(shard.file, shard.number, len(lines), data, tuple(problems), tuple(cut))


def _hash_weights(run: Path) -> str:
    with open_regular(RunFolder.open(run).weights) as file:
        return sha256_of(file)
