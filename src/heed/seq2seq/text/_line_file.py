"""Random access to the lines of files that may be larger than memory."""

from __future__ import annotations

import io
import itertools
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import numpy as np

from heed.seq2seq.text.text_files import open_text

_BLOCK = 50_000  # lines
_MARK = "\ufeff"  # byte order mark, with which some editors begin a file


class LineFile:
    """A file of UTF-8 text whose lines can be read in any order, once :meth:`blocks` has gone through it.

    It keeps four bytes in memory for each line, eight if the file has more than 4 GiB. A file that is compressed by
    gzip or a pipe is copied to a temporary file, which lives as long as this object; `TMPDIR` sets its folder.

    Raises:
        OSError, TaskError: as `open_text`.
    """

    def __init__(self, path: Path) -> None:
        self._file = _open_seekable(path)
        weakref.finalize(self, self._file.close)
        self._raw = cast(io.RawIOBase, self._file.raw)  # a buffer would read more than a line
        self._lock = threading.Lock()  # a file has one position
        # Starts of lines, and the end of the last. Made at once: lists of parts would take twice the memory.
        size = os.fstat(self._file.fileno()).st_size
        kind = np.uint32 if size <= np.iinfo(np.uint32).max else np.uint64
        self._starts = np.zeros(1 + _count_lines(self._file), kind)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def blocks(self) -> Iterator[list[str]]:
        """Yield all lines in order without their ends, some thousands at a time.

        Raises:
            UnicodeDecodeError: at bytes that are not UTF-8.
            ValueError: if the file has other lines than before.
        """
        self._file.seek(0)
        number = end = 0
        while lines := list(itertools.islice(self._file, _BLOCK)):
            ends = end + np.cumsum(np.fromiter(map(len, lines), np.int64, len(lines)))
            self._starts[1 + number : 1 + number + len(lines)] = ends
            texts = b"".join(lines).decode().removesuffix("\n").split("\n")
            if not number:
                texts[0] = texts[0].removeprefix(_MARK)
            yield texts
            number, end = number + len(lines), int(ends[-1])

    def lines(self, numbers: Iterable[int]) -> list[str]:
        """Return the lines with these numbers, from 0 on, without their ends.

        Raises:
            UnicodeDecodeError: if the file has changed.
        """
        chosen = np.fromiter(numbers, np.int64)
        places = np.stack([self._starts[chosen], self._starts[chosen + 1]], axis=1).tolist()
        texts = []
        with self._lock:
            for start, end in places:
                self._raw.seek(start)
                line = (self._raw.read(end - start) or b"").decode().removesuffix("\n")
                texts.append(line if start else line.removeprefix(_MARK))
        return texts


def _count_lines(file: io.BufferedReader) -> int:
    count, last = 0, b"\n"
    file.seek(0)
    while block := file.read(1 << 20):
        count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")


def _open_seekable(path: Path) -> io.BufferedReader:
    """Open the text of a file, or of a temporary copy of it if it is compressed or a pipe."""
    with open_text(path) as file:
        if isinstance(file, io.BufferedReader) and file.seekable():
            return path.open("rb")
        copy = tempfile.TemporaryFile(prefix="heed-")  # noqa: SIM115 (who opened it closes it)
        try:
            shutil.copyfileobj(file, copy, 1 << 20)
            copy.flush()  # lines are read past its buffer
        except BaseException:
            copy.close()
            raise
    return cast(io.BufferedReader, copy)
