"""Hands the missing shards of a corpus to workers, and joins the files."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.processes.signals import EndedBySignal
from heed.seq2seq.corpus._output_folder import OutputFolder
from heed.seq2seq.corpus.inputs import InputFile, Shard
from heed.seq2seq.corpus.job import ShardResult

_PROGRESS = 30.0  # seconds between lines of progress

# Translates shards in any order; the first argument is the number of shards, 1 or more. To close it ends the workers.
Workers = Callable[[int, Iterator[Shard]], Generator[ShardResult, None, None]]


@dataclass(frozen=True)
class Summary:
    """The numbers of a finished translation of a corpus."""

    files: int
    lines: int
    problems: int  # lines that could not be translated
    shards: int
    ready: int  # shards that were there before


def translate_corpus(
    inputs: Sequence[InputFile],
    output: Path,
    settings: dict[str, Any],
    workers: Workers,
    report: Callable[[str], object],
    note: Callable[[str], object],
) -> Summary:
    """Translate each input to the file of the same name in a folder; continues what an earlier call began.

    Each shard is written as soon as it is translated, so that a stop at any time loses only the shards under way.

    Args:
        inputs: the input files, in order, cut into shards.
        output: the folder.
        settings: those of `Job.describe`; the folder refuses others.
        workers: translates shards.
        report: called with file, number and problem of each line that cannot be translated, or whose translation was
            cut now.
        note: called with lines about the progress.

    Raises:
        TaskError: if the folder holds another translation, or the workers cannot translate.
        OSError: if a file cannot be read or written.
        EndedBySignal: after Ctrl-C, SIGTERM or SIGHUP; a KeyboardInterrupt, whose message says how much is done.
    """
    with OutputFolder.open(output, inputs, settings, note) as folder:
        progress = _Progress(folder, report, note)
        missing = progress.collect_missing()
        shards = (inputs[file].read_shard(file, number) for file, number in missing)
        if missing:
            try:
                with contextlib.closing(workers(len(missing), shards)) as results:
                    for result in results:
                        progress.add(result)
            except KeyboardInterrupt as stop:
                number = getattr(stop, "signal", signal.SIGINT)
                raise EndedBySignal(progress.describe_stop(), number) from None
        return progress.summary()


class _Progress:
    """Counts the shards of each file, and finishes a file with its last shard."""

    def __init__(
        self,
        folder: OutputFolder,
        report: Callable[[str], object],
        note: Callable[[str], object],
    ) -> None:
        self._folder, self._report, self._note = folder, report, note
        self._left = [len(one.starts) for one in folder.inputs]
        self._total = sum(self._left)
        self._ready = self._problems = self._lines = 0
        self._begin = self._last = time.monotonic()

    def collect_missing(self) -> list[tuple[int, int]]:
        """Read what is there: report its problems, finish complete files, and return the missing shards."""
        missing: list[tuple[int, int]] = []
        for file, one in enumerate(self._folder.inputs):
            problems = self._folder.problems_of_file(file)
            if problems is not None:
                self._ready += self._left[file]
                self._left[file] = 0
                self._add_problems(file, problems)
                continue
            for number in range(len(one.starts)):
                problems = self._folder.problems_of_shard(file, number)
                if problems is None:
                    missing.append((file, number))
                    continue
                self._ready += 1
                self._left[file] -= 1
                self._add_problems(file, problems)
            if not self._left[file]:
                self._folder.finish_file(file)
        there = f"; {self._ready:,} are there already" if self._ready else ""
        files = len(self._folder.inputs)
        self._note(f"{_count(self._total, 'shard')} of {_count(files, 'file')}{there}")
        return missing

    def add(self, result: ShardResult) -> None:
        """Write a shard, and its file if it was the last one."""
        self._folder.write_shard(result)
        self._add_problems(result.file, result.problems)
        self._report_lines(result.file, result.cut)
        self._lines += result.lines
        self._left[result.file] -= 1
        if not self._left[result.file]:
            self._folder.finish_file(result.file)
        now = time.monotonic()
        if now - self._last > _PROGRESS:
            speed = self._lines / (now - self._begin)
            self._note(f"{self._done:,} of {self._total:,} shards; {speed:,.0f} lines a second")
            self._last = now

    def _add_problems(self, file: int, problems: Sequence[str]) -> None:
        self._problems += len(problems)
        self._report_lines(file, problems)

    def _report_lines(self, file: int, lines: Sequence[str]) -> None:
        for one in lines:
            self._report(f"{self._folder.inputs[file].path}, {one}")

    @property
    def _done(self) -> int:
        return self._total - sum(self._left)

    def describe_stop(self) -> str:
        return f"stopped after {self._done:,} of {self._total:,} shards; the same command continues"

    def summary(self) -> Summary:
        inputs = self._folder.inputs
        lines = sum(one.lines for one in inputs)
        return Summary(len(inputs), lines, self._problems, self._total, self._ready)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
