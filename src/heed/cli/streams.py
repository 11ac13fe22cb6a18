"""What a command reads and says."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from heed.seq2seq.errors import TaskError


def say(line: str) -> None:
    """Prints a line of the answer at once, also to a pipe."""
    print(line, flush=True)


def note(line: str) -> None:
    """Prints a line about the work, to stderr."""
    print(f"heed: {line}", file=sys.stderr, flush=True)


def prepare_streams() -> None:
    """Bytes that are no text are said to be so, and nothing that is said stops the command."""
    if sys.stderr is None:  # closed: `print` would write to standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for as long as the process lives)
    if isinstance(sys.stdin, io.TextIOWrapper):
        with contextlib.suppress(io.UnsupportedOperation):  # some of it has been read already
            sys.stdin.reconfigure(errors="surrogateescape", newline="\n")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Drops what could not be written, which Python would try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except AttributeError:  # it is closed
        pass


@contextlib.contextmanager
def opened_input(path: Path | None) -> Iterator[Iterable[str]]:
    """The lines of a file, or of standard input."""
    if path is not None:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            yield file
        return
    if sys.stdin is None:
        raise TaskError("standard input is closed: give the text as an argument")
    yield sys.stdin


@contextlib.contextmanager
def opened_output(path: Path | None) -> Iterator[Callable[[str], None]]:
    """Writes lines to a file, or to standard output."""
    if path is None:
        yield say
        return
    with path.open("w", encoding="utf-8") as file:
        yield lambda line: print(line, file=file, flush=True)


def without_mark(lines: Iterable[str]) -> Iterator[str]:
    """The lines; a mark of the byte order before the first is no text."""
    for number, line in enumerate(lines):
        yield line if number else line.removeprefix("\ufeff")
