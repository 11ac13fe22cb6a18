"""`heed translate` of several files: shards, workers, and an output folder that a second call continues."""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path

from heed import seq2seq
from heed.cli._arguments import Parser, check_positive
from heed.cli._streams import print_note
from heed.errors import UsageError
from heed.seq2seq.corpus.coordinator import Workers
from heed.seq2seq.corpus.coordinator import translate_corpus as run_corpus
from heed.seq2seq.corpus.inputs import Shard, find_inputs, is_pattern, scan
from heed.seq2seq.corpus.job import Job, LineFormat, ShardResult, ShardTranslator

_SHARD_LINES = 1_000
_LAUNCHERS = ("local", "ray")


def add_corpus_options(parser: Parser) -> None:
    """Add the options for several files."""
    parser.add_argument(
        "--launch", choices=_LAUNCHERS, help="translate files with workers: processes here, or Ray"
    )
    parser.add_argument("--workers", type=int, help="workers of --launch (1)")
    parser.add_argument(
        "--shard-lines", type=int, help=f"lines of files that one worker takes ({_SHARD_LINES:,})"
    )


def is_corpus(parsed: argparse.Namespace) -> bool:
    """Return whether the command translates files to a folder, not lines to a stream."""
    options = (parsed.launch, parsed.workers, parsed.shard_lines)
    return (
        any(one is not None for one in options)
        or (parsed.output is not None and parsed.output.is_dir() and not parsed.text)
        or (parsed.input is not None and _means_several(parsed.input))
    )


def _means_several(path: Path) -> bool:
    return is_pattern(path) and not path.exists()


def translate_corpus(
    parsed: argparse.Namespace,
    options: seq2seq.DecodingOptions,
    line_format: LineFormat,
    batch_size: int,
) -> int:
    """Translate files; the status is 1 if a line could not be translated."""
    _check_arguments(parsed)
    shard_lines = _SHARD_LINES
    if parsed.shard_lines is not None:
        shard_lines = check_positive("--shard-lines", parsed.shard_lines)
    count = 1 if parsed.workers is None else check_positive("--workers", parsed.workers)
    job = Job(
        parsed.run,
        options,
        tuple(parsed.ensemble or ()),
        parsed.language,
        parsed.prefix,
        line_format,
        batch_size,
        shard_lines,
    )
    job.check()
    begin = time.monotonic()
    note = (lambda _: None) if parsed.quiet else print_note
    with tempfile.TemporaryDirectory(prefix="heed-") as copies:
        paths = find_inputs(parsed.input)
        inputs = [scan(path, shard_lines, Path(copies)) for path in paths]
        workers = _make_workers(parsed, job, count)
        done = run_corpus(inputs, parsed.output, job.describe(), workers, print_note, note)
    problems = f"; {done.problems:,} could not be translated" if done.problems else ""
    note(
        f"{done.lines:,} lines are in {parsed.output}{problems} ({time.monotonic() - begin:.1f} s)"
    )
    return 1 if done.problems else 0


def _check_arguments(parsed: argparse.Namespace) -> None:
    if parsed.text:
        raise UsageError(
            "files are translated without a text as an argument: quote a pattern, as in "
            f"--input 'corpus/*.txt'. Received: {' '.join(parsed.text)!r}"
        )
    if parsed.picture:
        raise UsageError("--picture needs the text as an argument: it draws one translation")
    if parsed.input is None:
        raise UsageError("several files need --input, such as --input 'corpus/*.txt'")
    if parsed.output is None:
        raise UsageError("several files need --output, a folder for the translations")
    if parsed.workers is not None and parsed.launch is None:
        raise UsageError(f"--workers needs --launch: {' or '.join(_LAUNCHERS)}")


def _make_workers(parsed: argparse.Namespace, job: Job, count: int) -> Workers:
    if parsed.launch == "local":
        from heed.processes.child import count_threads
        from heed.processes.pool import run_in_pool

        make = functools.partial(ShardTranslator, job, count_threads(parsed.device_threads, count))
        return functools.partial(run_in_pool, make, count, print_note)
    if parsed.launch == "ray":
        from heed.seq2seq.ray.corpus import translate_on_ray

        return functools.partial(translate_on_ray, job, count, parsed.device_threads, print_note)

    def translate_here(_: int, shards: Iterator[Shard]) -> Generator[ShardResult, None, None]:
        yield from map(ShardTranslator(job, parsed.device_threads, print_note), shards)

    return translate_here
