"""Files of parallel text: two with a sentence a line, or one with both sides."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from heed.errors import TaskError, UsageError
from heed.seq2seq.text.text_files import open_text
from heed.seq2seq.text.word_links import read_links

Pair = tuple[str, str]  # a sentence and its translation

NOT_UTF8 = "not UTF-8 text"


class Entry(NamedTuple):
    """Line `number`, from 1 on, of a corpus: both sides without outer spaces, or the line's problem."""

    number: int
    source: str
    target: str
    problem: str | None = None


@dataclass(frozen=True)
class Corpus:
    """Parallel text on a disk.

    Args:
        source: file of sentences, one a line; or of both sides: `.tsv`, two columns with a tab between them, or
            `.jsonl`, an object a line with the strings "source" and "target". Any of them may be compressed by gzip. A
            blank line is a pair of empty sides.
        target: file of the translations, line by line; None if `source` holds both sides.
        alignment: file of word links, see `read_links`, line by line; or None.

    Raises:
        TaskError: if a target is missing, or superfluous.

    Example:
        >>> Corpus(Path("pairs.tsv.gz")).kind
        '.tsv'
    """

    source: Path
    target: Path | None = None
    alignment: Path | None = None

    def __post_init__(self) -> None:
        if self.kind in _SPLIT and self.target is not None:
            raise UsageError(f"{self.source} holds both sides: leave out {self.target}")
        if self.kind not in _SPLIT and self.target is None:
            raise UsageError(
                f"{self.source} has one side: give the file of the other one too, or a file of both "
                f"({', '.join(_SPLIT)})"
            )

    @property
    def kind(self) -> str:
        """The suffix of `source` without a compression suffix."""
        name = self.source.name.lower()
        return Path(name.removesuffix(".gz")).suffix

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files of the text."""
        return (self.source,) if self.target is None else (self.source, self.target)

    @property
    def files(self) -> tuple[Path, ...]:
        """All files, which have equally many lines; the alignment is the last one."""
        return self.paths if self.alignment is None else (*self.paths, self.alignment)

    def __str__(self) -> str:
        return " and ".join(map(str, self.paths))

    def entries(self) -> Iterator[Entry]:
        """Yield each line, good or bad, with only that line in memory.

        Raises:
            TaskError: if a file is missing, is a folder, or cannot be read.
        """
        lines = itertools.zip_longest(*map(_read_lines, self.files), fillvalue=_NO_LINE)
        for number, texts in enumerate(lines, 1):
            try:
                source, target = self._parse(texts)
            except ValueError as error:
                yield Entry(number, "", "", str(error))
            else:
                yield Entry(number, source, target)

    def _parse(self, lines: tuple[Any, ...]) -> Pair:
        """Return both sides of a line of each file; a ValueError describes a bad one."""
        if _NO_LINE in lines:
            all_ = "both" if len(lines) == 2 else "all"
            missing = self.files[lines.index(_NO_LINE)]
            raise ValueError(f"{missing} ends before it, and {all_} must have as many lines")
        if None in lines:
            where = f" in {self.files[lines.index(None)]}" if len(lines) > 1 else ""
            raise ValueError(f"{NOT_UTF8}{where}")
        (source,), (target,) = self.sides(*([line] for line in lines[: len(self.paths)]))
        self.check_links([source], [target], lines[-1:])
        return source, target

    def check_links(self, sources: list[str], targets: list[str], lines: Sequence[str]) -> None:
        """Check lines of the alignment, if there is one, against their pairs; a ValueError describes a bad one."""
        if self.alignment is None:
            return
        for source, target, line in zip(sources, targets, lines, strict=True):
            if source and target:  # others are left out
                try:
                    read_links(line, source, target)
                except ValueError as error:
                    raise ValueError(f"{self.alignment}: {error}") from None

    def pairs(self) -> Iterator[Pair]:
        """Yield the pairs; a side may be empty.

        Raises:
            TaskError: at the first bad line, or as for `entries`.
        """
        for entry in self.entries():
            if entry.problem is not None:
                where = self if self.target is None else "parallel text"
                raise TaskError(f"{where}, line {entry.number:,}: {entry.problem}")
            yield entry.source, entry.target

    def sides(self, *lines: list[str]) -> tuple[list[str], list[str]]:
        """Split as many lines of each file into sources and targets without outer spaces; a side may be empty.

        Raises:
            ValueError: if one is not a pair.
        """
        if self.target is not None:
            sources, targets = lines
        else:
            split = _SPLIT[self.kind]
            pairs = [split(line) if line.strip() else ("", "") for line in lines[0]]
            sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
        return [text.strip() for text in sources], [text.strip() for text in targets]


_NO_LINE = object()


def _split_tsv(line: str) -> tuple[str, str]:
    columns = line.split("\t")
    if len(columns) != 2:
        raise ValueError(f"two columns with a tab between them are expected, not {len(columns)}")
    return columns[0], columns[1]


def _split_json(line: str) -> tuple[str, str]:
    try:
        content = json.loads(line)
    except ValueError as error:  # RecursionError too
        raise ValueError(f"not JSON: {error}") from None
    sides = [
        content.get(name) if isinstance(content, dict) else None for name in ("source", "target")
    ]
    if not all(isinstance(side, str) for side in sides):
        raise ValueError('an object with the strings "source" and "target" is expected')
    if any("\ud800" <= letter <= "\udfff" for side in sides for letter in str(side)):
        raise ValueError(NOT_UTF8)  # half of a surrogate pair
    return str(sides[0]), str(sides[1])


# Parsers of lines with both sides, by suffix.
_SPLIT: dict[str, Callable[[str], Pair]] = {".tsv": _split_tsv, ".jsonl": _split_json}


def _read_lines(path: Path) -> Iterator[str | None]:
    """Yield the lines of a file, None for one that is not UTF-8.

    Only line feeds end lines; Python's `splitlines` would also split at form feeds and U+2028.
    """
    try:
        with open_text(path) as file:
            for number, line in enumerate(file):
                try:
                    yield line.decode("utf-8-sig" if number == 0 else "utf-8").rstrip("\r\n")
                except UnicodeDecodeError:
                    yield None
    except (OSError, EOFError, zlib.error) as error:
        raise TaskError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        ) from None
