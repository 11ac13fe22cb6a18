"""Input and output of the commands."""

from __future__ import annotations

import contextlib
import io
import os
import select
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from heed.errors import TaskError, UsageError
from heed.seq2seq.text.text_files import name_file, open_text, read_text

# A translation may hold line breaks, which would make several lines of it.
_NO_BREAKS = str.maketrans("\r\n", "  ")


def print_line(line: str) -> None:
    """Print one line of output at once, also to a pipe."""
    print(line.translate(_NO_BREAKS), flush=True)


def print_note(line: str) -> None:
    """Print a line about the work to stderr."""
    print(f"heed: {line}", file=sys.stderr, flush=True)


STANDARD_INPUT = Path("-")
KEPT = ("source", "target", "alignment")  # files that training reads to its end


def prepare_streams() -> None:
    """Make bytes that are not UTF-8 readable and all output printable."""
    if sys.stderr is None:  # closed: `print` would write to standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (for as long as the process lives)
    if isinstance(sys.stdin, io.TextIOWrapper):
        with contextlib.suppress(io.UnsupportedOperation):  # some of it has been read already
            sys.stdin.reconfigure(errors="surrogateescape", newline="\n")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Drop unwritten output, which Python would try to write again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except AttributeError:  # it is closed
        pass


@contextlib.contextmanager
def open_input(path: Path | None) -> Iterator[Iterable[str]]:
    """Open the lines of a file, or of standard input."""
    if path is not None:
        with open_text(path) as file:
            yield _decode_lines(file, str(path))
        return
    if sys.stdin is None:
        raise TaskError("standard input is closed: give the text as an argument")
    yield sys.stdin if sys.stdin.isatty() else _read_standard_input()


def _read_standard_input() -> Iterator[str]:
    """Yield the lines of standard input; it is opened with the first, as its program may wait for an answer."""
    data = getattr(sys.stdin, "buffer", None)
    if data is None:  # a replacement
        yield from sys.stdin
    else:
        yield from _decode_lines(read_text(data, "standard input"), "standard input")


def _decode_lines(file: IO[bytes], name: str) -> Iterator[str]:
    """Yield the lines; bytes that are not UTF-8 stay in them as surrogates."""
    with name_file(name):
        for line in iter(file.readline, b""):
            yield line.decode("utf-8", "surrogateescape")


def read_terminal(prepare: Callable[[], object]) -> Iterator[str]:
    """Yield the lines of a terminal; call `prepare` once, while no line waits."""
    pending = True
    while True:
        if pending and not _line_waits():
            prepare()
            pending = False
        if not (line := sys.stdin.readline()):
            return
        yield line


def _line_waits() -> bool:
    """Return whether a line of the terminal waits; no, if the system cannot tell."""
    try:
        return bool(select.select([sys.stdin], [], [], 0)[0])
    except (OSError, ValueError):
        return False


def _copy_input(path: Path, target: Path | None = None) -> None:
    """Copy standard input, lines of both sides, to a new file; `target` is what is given for the other side."""
    if target is not None:
        raise UsageError(f"standard input holds both sides: leave out {target}")
    if sys.stdin is None:
        raise TaskError("standard input is closed")
    if sys.stdin.isatty():
        raise TaskError(
            "standard input is a terminal: lines of two columns with a tab between them are to be "
            "piped into heed"
        )
    read = sys.stdin.buffer
    first = read.read(1 << 20)
    if not first:
        raise TaskError("standard input is empty: lines of two columns with a tab between them")
    _check_free(path, "standard input")
    _write(path, read, first)


def _check_free(path: Path, name: str) -> None:
    if path.exists():
        raise TaskError(f"{path} exists already, and would hold {name}")


def _write(path: Path, read: IO[bytes], first: bytes = b"") -> None:
    """Write bytes and the rest of a pipe to a new file, all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as file:
            file.write(first)
            shutil.copyfileobj(read, file, 1 << 20)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def resolve_inputs(*paths: Any) -> Iterator[list[Any]]:
    """Yield the paths of a source, its target and other files; temporary copies of standard input and of pipes."""
    with tempfile.TemporaryDirectory(prefix="heed-") as folder:
        values = dict(zip(KEPT, paths, strict=False))
        with keep_inputs(values, Path(folder) / "input"):
            yield list(values.values())


@contextlib.contextmanager
def keep_inputs(values: dict[str, Any], beside: Path) -> Iterator[None]:
    """Copy standard input and pipes among the files of `KEPT` to files beside a path; drop them if the block fails.

    `values` has the copies then, and errors of the block the names that the user knows.
    """
    copies: dict[Path, Path] = {}
    try:
        for name in filter(values.get, KEPT):
            given = values[name]
            if name == "source" and given == STANDARD_INPUT:
                copy = beside.with_name(f"{beside.name}.tsv")
                _copy_input(copy, values.get("target"))
            elif is_pipe(Path(given)):
                copy = beside.with_name(f"{beside.name}.{name}")
                _copy_pipe(Path(given), copy)
            else:
                continue
            values[name], copies[copy] = copy, Path(given)
        yield
    except BaseException as error:
        for copy in copies:
            copy.unlink()
        if isinstance(error, TaskError):
            raise type(error)(name_inputs(str(error), copies, copies.values())) from None
        raise


def name_inputs(text: str, copies: Iterable[Any], paths: Iterable[Any]) -> str:
    """Return the text with the names that the user knows in place of those of copies."""
    for copy, path in zip(copies, paths, strict=True):
        if copy != path:
            name = "standard input" if path == STANDARD_INPUT else str(path)
            text = text.replace(str(copy), name)
    return text


def is_pipe(path: Path) -> bool:
    """Return whether it can be read only once: `<(command)` of a shell, or a named pipe."""
    return path.exists() and not (path.is_file() or path.is_dir())


def _copy_pipe(pipe: Path, path: Path) -> None:
    """Copy what comes out of a pipe to a new file."""
    _check_free(path, str(pipe))
    with pipe.open("rb") as read:
        _write(path, read)


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[Callable[[str], None]]:
    """Open a file, or standard output, and yield a function that writes a line."""
    if path is None:
        yield print_line
        return
    with path.open("w", encoding="utf-8") as file:
        yield lambda line: print(line, file=file, flush=True)


def strip_mark(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines, without a byte order mark before the first."""
    for number, line in enumerate(lines):
        yield line if number else line.removeprefix("\ufeff")
