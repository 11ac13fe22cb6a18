"""The folder of a corpus translation: shards and finished files, each whole or not there at all.

a.txt                        the translation of the input a.txt, once it is finished
.heed/manifest.json          the inputs and the settings
.heed/shards/00000-0000000   a finished shard of the first file with its checksum, until the file is finished
.heed/files/00000.json       the record of a finished file: its checksum, and the lines that could not be translated
.heed/lock                   held by the process that writes
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from heed.errors import TaskError
from heed.files import open_regular, sha256_of, temporary_prefix
from heed.seq2seq.atomic_files import lock, write_atomically
from heed.seq2seq.corpus._manifest import check_same, make_manifest, read_manifest, write_manifest
from heed.seq2seq.corpus.inputs import InputFile
from heed.seq2seq.corpus.job import ShardResult

_OWN = ".heed"
_BLOCK = 1 << 20


class _DamagedError(Exception):
    """A shard or a record is not as it was written."""


class OutputFolder:
    """A folder that this process writes. Use :meth:`open`."""

    def __init__(
        self, path: Path, inputs: Sequence[InputFile], note: Callable[[str], object]
    ) -> None:
        self.path, self.inputs, self._note = path, inputs, note
        self._own = path / _OWN
        self._shards, self._files = self._own / "shards", self._own / "files"

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        path: Path,
        inputs: Sequence[InputFile],
        settings: dict[str, Any],
        note: Callable[[str], object],
    ) -> Iterator[OutputFolder]:
        """Make the folder, or open one that was begun with the same inputs and settings, and lock it.

        Args:
            path: the folder.
            inputs: the input files, in order.
            settings: those of `Job.describe`.
            note: called with a line for each shard or record that is damaged, and is made again.

        Raises:
            TaskError: if it holds another translation or other files of these names, or another process writes it.
            OSError: if it cannot be written.
        """
        folder = cls(path, inputs, note)
        manifest = make_manifest(settings, inputs)
        found = read_manifest(folder._own / "manifest.json")
        if found is not None:
            check_same(path, found, manifest)
        else:
            folder._check_free()
        for one in (folder._shards, folder._files):
            one.mkdir(parents=True, exist_ok=True)
        folder._check_names()
        with lock(folder._own / "lock", f"another process writes {path}"):
            if found is None:
                write_manifest(folder._own / "manifest.json", manifest)
            folder._remove_temporary_files()
            yield folder

    def _check_free(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise TaskError(f"--output must be a folder for several files. Received: {self.path}")
        for one in self.inputs:
            place = self.path / one.path.name
            if place.exists():
                same = place.samefile(one.text)
                why = "it is the input" if same else "heed did not write it for this job"
                raise TaskError(f"{place} exists already, and {why}: choose another --output")

    def _check_names(self) -> None:
        try:
            longest = os.pathconf(self.path, "PC_NAME_MAX")
        except (AttributeError, OSError):  # Windows; some network file systems
            return
        for one in self.inputs:
            if len(os.fsencode(one.path.name)) > longest:
                raise TaskError(
                    f"the name of {one.path} is too long for --output, which takes {longest} bytes: choose another "
                    "folder, or rename the file"
                )

    def _remove_temporary_files(self) -> None:
        """Remove what a killed process left half-written."""
        names = [temporary_prefix(one.path.name) for one in self.inputs]
        left = [*self._own.rglob(".*.tmp"), *self.path.glob(".*.tmp")]
        for path in left:
            if path.is_relative_to(self._own) or path.name.startswith(tuple(names)):
                path.unlink(missing_ok=True)

    def problems_of_file(self, file: int) -> list[str] | None:
        """Return the problems of a finished file; None if it is not finished, or its record is damaged."""
        place = self.path / self.inputs[file].path.name
        if not place.exists():
            return None  # also if it was finished, and somebody removed it
        path = self._record_path(file)
        try:
            with open_regular(path) as opened:
                problems, checksum = _read_head(path, opened.read())
        except FileNotFoundError:  # stopped between writing the file and its record
            return None
        except (OSError, _DamagedError) as error:
            self._note(f"{_describe_damage(path, error)}: {place.name} is translated again")
            return None
        with open_regular(place) as opened:
            if sha256_of(opened) != checksum:
                raise TaskError(f"{place} has been changed: delete it to translate it again")
        return problems

    def problems_of_shard(self, file: int, number: int) -> list[str] | None:
        """Return the problems of a finished shard; None if it is not finished, or damaged."""
        path = self._shard_path(file, number)
        try:
            return _read_shard(path)
        except FileNotFoundError:
            return None
        except (OSError, _DamagedError) as error:
            where = f"shard {number + 1:,} of {self.inputs[file].path.name} is translated again"
            self._note(f"{_describe_damage(path, error)}: {where}")
            return None

    def write_shard(self, result: ShardResult) -> None:
        path = self._shard_path(result.file, result.number)
        head = _make_head(path, result.problems, hashlib.sha256(result.output).hexdigest())

        def write(opened: IO[bytes]) -> None:
            opened.write(head)
            opened.write(result.output)

        write_atomically(path, write)

    def finish_file(self, file: int) -> None:
        """Join the shards of a file, all of which are there, write its record and remove them."""
        one = self.inputs[file]
        shards = [self._shard_path(file, number) for number in range(len(one.starts))]
        problems: list[str] = []
        place = self.path / one.path.name

        def write(opened: IO[bytes]) -> None:
            for shard in shards:
                try:
                    problems.extend(_read_shard(shard, opened.write))
                except _DamagedError as error:
                    raise TaskError(
                        f"{_describe_damage(shard, error)}: the same command translates it again"
                    ) from None

        write_atomically(place, write)
        path = self._record_path(file)
        with place.open("rb") as opened:
            record = _make_head(path, problems, sha256_of(opened))
        write_atomically(path, lambda out: out.write(record))
        for shard in shards:
            shard.unlink()

    def _record_path(self, file: int) -> Path:
        return self._files / f"{file:05}.json"

    def _shard_path(self, file: int, number: int) -> Path:
        return self._shards / f"{file:05}-{number:07}"


def _make_head(path: Path, problems: Sequence[str], checksum: str) -> bytes:
    """Make the record of a file, or the first line of a shard, with the checksum of what it tells of."""
    head = {"name": path.name, "sha256": checksum, "problems": list(problems)}
    return json.dumps({**head, "crc32": _sum(head)}).encode() + b"\n"


def _read_head(path: Path, line: bytes) -> tuple[list[str], str]:
    """Return the problems and the checksum of a line of `_make_head` for the same path."""
    try:
        head = json.loads(line)
        if head.pop("crc32") != _sum(head) or head["name"] != path.name:
            raise _DamagedError("its first line is another")
        return head["problems"], head["sha256"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _DamagedError("heed did not write it" if line else "it is empty") from None


def _sum(head: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(head).encode())


def _read_shard(path: Path, write: Callable[[bytes], object] = lambda _: None) -> list[str]:
    """Pass the output of a shard on in blocks, even of one that turns out to be damaged; return its problems."""
    digest = hashlib.sha256()
    with open_regular(path) as opened:
        problems, checksum = _read_head(path, opened.readline())
        while block := opened.read(_BLOCK):
            digest.update(block)
            write(block)
    if digest.hexdigest() != checksum:
        raise _DamagedError("its checksum is another")
    return problems


def _describe_damage(path: Path, error: Exception) -> str:
    return f"{path} is damaged: {getattr(error, 'strerror', None) or error}"
