"""Opens files of text: plain ones, compressed ones, pipes."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from heed.errors import TaskError
from heed.files import open_regular

_GZIP = b"\x1f\x8b"
# First bytes of files that are no text, and what they are.
_OTHERS = {
    b"\x28\xb5\x2f\xfd": "compressed by zstd: unpack it, or compress it with gzip",
    b"\xfd7zXZ\0": "compressed by xz: unpack it, or compress it with gzip",
    b"BZh91AY&SY": "compressed by bzip2: unpack it, or compress it with gzip",
    b"PK\x03\x04": "a zip archive: unpack it",
    b"\xff\xfe": "UTF-16: convert it to UTF-8",
    b"\xfe\xff": "UTF-16: convert it to UTF-8",
}


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[IO[bytes]]:
    """Open a file's bytes in the block, decompressed if they begin as gzip's do, whatever its name.

    Raises:
        OSError: if it cannot be read.
        TaskError: if it is compressed by another program, or UTF-16.
    """
    with path.open("rb") as file:
        yield read_text(file, str(path))


def read_text(file: IO[bytes], name: str) -> IO[bytes]:
    """Return the bytes of an open file or pipe, whose name is for errors. See `open_text`."""
    head = b""
    # Byte by byte: a program that pipes a short line in may wait for its answer.
    while any(first.startswith(head) and first != head for first in (_GZIP, *_OTHERS)):
        if not (byte := file.read(1)):
            break
        head += byte
    if head in _OTHERS:
        raise TaskError(f"{name} is {_OTHERS[head]}")
    if file.seekable():
        file.seek(0)
        whole = file
    else:
        whole = cast(IO[bytes], io.BufferedReader(_Rewound(head, file)))
    return cast(IO[bytes], gzip.GzipFile(fileobj=whole, mode="rb")) if head == _GZIP else whole


def unpack(path: Path, folder: Path) -> Path:
    """Return a plain copy of a compressed file, made in a folder; the path itself of one that is plain.

    Raises:
        OSError: if it cannot be read, or is a pipe or a device, which can be read only once.
        TaskError: as for `open_text`.
    """
    with open_regular(path) as opened:
        file = read_text(opened, str(path))
        if file is opened:
            return path
        number, name = tempfile.mkstemp(dir=folder)
        with os.fdopen(number, "wb") as copy, name_file(path):
            shutil.copyfileobj(file, copy, 1 << 20)
    return Path(name)


@contextlib.contextmanager
def name_file(path: Path | str) -> Iterator[None]:
    """Name the file in the errors of a damaged one.

    Raises:
        TaskError: if what the block reads cannot be unpacked.
    """
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TaskError(f"cannot read {path}: {error}") from None


class _Rewound(io.RawIOBase):
    """A pipe whose first bytes have been read, as if they had not."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head = head
        # What there is, at once; a plain `read` would wait for more.
        self._read: Callable[[int], bytes] = getattr(rest, "read1", rest.read)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._head[: len(buffer)]
        self._head = self._head[len(data) :]
        data = data or self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
