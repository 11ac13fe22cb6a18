"""The input files of a corpus, cut into shards of lines."""

from __future__ import annotations

import glob
import hashlib
import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heed.errors import TaskError, UsageError
from heed.files import open_regular
from heed.seq2seq.text.text_files import unpack


@dataclass(frozen=True)
class Shard:
    """Lines of a file that one worker translates."""

    name: str  # of the file, for messages
    file: int  # its number in the corpus
    number: int  # of the shard in the file
    first_line: int  # the number of its first line in the file, from 1 on
    data: bytes = field(repr=False)

    def __str__(self) -> str:
        return f"{self.name}, from line {self.first_line:,} on"

    def lines(self) -> list[str]:
        """Return the lines without their ends, and without a byte order mark at the start of the file."""
        text = self.data.decode("utf-8", "surrogateescape")
        if self.first_line == 1:
            text = text.removeprefix("\ufeff")
        return text.removesuffix("\n").split("\n")


@dataclass(frozen=True)
class InputFile:
    """A file of lines, and where its shards begin. Use :func:`scan`."""

    path: Path  # the file, without ".gz": its translation is plain
    size: int  # the bytes of its text
    sha256: str  # its checksum
    lines: int  # its lines; the last one needs no end
    shard_lines: int  # lines of each shard but the last
    starts: Sequence[int] = field(repr=False)  # the first byte of each shard
    checksums: Sequence[int] = field(repr=False)  # the CRC-32 of each shard
    text: Path = field(repr=False)  # the file to read: as it was given, or a plain copy

    def read_shard(self, file: int, number: int) -> Shard:
        """Read a shard of the file, whose number in the corpus is `file`.

        Raises:
            TaskError: if the file has changed since it was scanned.
        """
        start, end = (*self.starts, self.size)[number : number + 2]
        with open_regular(self.text) as opened:
            opened.seek(start)
            data = opened.read(end - start)
        if zlib.crc32(data) != self.checksums[number]:
            raise TaskError(f"{self.path} has changed while it was translated")
        return Shard(str(self.path), file, number, 1 + number * self.shard_lines, data)


def scan(path: Path, shard_lines: int, copies: Path | None = None) -> InputFile:
    """Read a file once: its checksum, and where its shards begin.

    Args:
        path: the file.
        shard_lines: lines of a shard, 1 or more.
        copies: folder for a plain copy of a compressed file; None: it is plain.

    Raises:
        OSError: if it cannot be read, or is a pipe or a device, which can be read only once.
        TaskError: if it is no text, see `open_text`.
    """
    text = path if copies is None else unpack(path, copies)
    digest, lines, end = hashlib.sha256(), 0, 0
    starts: list[int] = []
    checksums: list[int] = []
    with open_regular(text) as file:
        while part := list(itertools.islice(file, shard_lines)):
            data = b"".join(part)
            digest.update(data)
            starts.append(end)
            checksums.append(zlib.crc32(data))
            lines, end = lines + len(part), end + len(data)
    path, checksum = _without_suffix(path), digest.hexdigest()
    return InputFile(path, end, checksum, lines, shard_lines, starts, checksums, text)


def _without_suffix(path: Path) -> Path:
    return path.with_suffix("") if path.suffix.lower() == ".gz" else path


def find_inputs(pattern: Path) -> list[Path]:
    """Return the files of a pattern such as `corpus/*.txt`, sorted by name; `**` matches folders in folders.

    Raises:
        TaskError: if no file matches, one is not a regular file, or two have the same name.
        FileNotFoundError: if `pattern` has no wildcards and does not exist.
    """
    if pattern.exists() or not is_pattern(pattern):
        pattern.stat()
        found = [pattern]
        if not pattern.is_file():
            example = f", such as '{pattern}/*.txt'" if pattern.is_dir() else ""
            raise UsageError(
                f"--input must be a file, or a pattern of files{example}. Received: {pattern}"
            )
    else:
        matches = map(Path, glob.glob(str(pattern), recursive=True))
        found = sorted(path for path in matches if not path.is_dir())
    if not found:
        raise TaskError(f"no file matches --input {str(pattern)!r}")
    by_name: dict[str, Path] = {}
    for path in found:
        if not path.is_file():
            kind = "is not a regular file" if path.exists() else "is a link to nothing"
            raise TaskError(f"{path} {kind}: --input {str(pattern)!r} must not match it")
        name = _without_suffix(path).name
        if (one := by_name.setdefault(name, path)) is not path:
            raise TaskError(f"each input needs a name of its own: {one} and {path} are both {name}")
    return found


def is_pattern(path: Path) -> bool:
    """Return whether the path has wildcards."""
    return glob.has_magic(str(path))
