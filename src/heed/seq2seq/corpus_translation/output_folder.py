"""The folder of a corpus translation: shards and finished files, each whole or not there at all.

a.txt                        the translation of the input a.txt, once it is finished
.heed/manifest.json          the inputs and the settings
.heed/shards/00000-0000000   a finished shard of the first file, until the file is finished
.heed/files/00000.json       the record of a finished file: its checksum, and the lines that could not be translated
.heed/lock                   held by the process that writes
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from heed.seq2seq.atomic_files import lock, write_atomically
from heed.seq2seq.corpus_translation.inputs import InputFile
from heed.seq2seq.corpus_translation.job import ShardResult
from heed.seq2seq.corpus_translation.manifest import (
    check_same,
    make_manifest,
    read_manifest,
    write_manifest,
)
from heed.seq2seq.errors import TaskError

_OWN = ".heed"


class OutputFolder:
    """A folder that this process writes. Use :meth:`open`.

    Args:
        path: the folder.
        inputs: the input files, in order.
    """

    def __init__(self, path: Path, inputs: Sequence[InputFile]) -> None:
        self.path, self.inputs = path, inputs
        self._own = path / _OWN
        self._shards, self._files = self._own / "shards", self._own / "files"

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, path: Path, inputs: Sequence[InputFile], settings: dict[str, Any]
    ) -> Iterator[OutputFolder]:
        """Makes the folder, or opens one that was begun with the same inputs and settings, and locks it.

        Args:
            path: the folder.
            inputs: the input files, in order.
            settings: those of `Job.describe`.

        Raises:
            TaskError: if it holds another translation or other files of these names, or another process writes it.
            OSError: if it cannot be written.
        """
        folder = cls(path, inputs)
        manifest = make_manifest(settings, inputs)
        found = read_manifest(folder._own / "manifest.json")
        if found is not None:
            check_same(path, found, manifest)
        else:
            folder._check_free()
        for one in (folder._shards, folder._files):
            one.mkdir(parents=True, exist_ok=True)
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

    def _remove_temporary_files(self) -> None:
        """Removes what a killed process left half-written."""
        names = [f".{one.path.name}." for one in self.inputs]
        left = [*self._own.rglob(".*.tmp"), *self.path.glob(".*.tmp")]
        for path in left:
            if path.is_relative_to(self._own) or path.name.startswith(tuple(names)):
                path.unlink(missing_ok=True)

    def problems_of_file(self, file: int) -> list[str] | None:
        """The problems of a finished file; None if it is not finished.

        Raises:
            TaskError: if its output has been changed since.
        """
        place = self.path / self.inputs[file].path.name
        if not place.exists():
            return None  # also if it was finished, and somebody removed it
        try:
            record = json.loads((self._files / f"{file:05}.json").read_text(encoding="utf-8"))
        except FileNotFoundError:  # stopped between writing the file and its record
            return None
        with place.open("rb") as opened:
            if _hash(opened) != record["sha256"]:
                raise TaskError(f"{place} has been changed: delete it to translate it again")
        return list(record["problems"])

    def problems_of_shard(self, file: int, number: int) -> list[str] | None:
        """The problems of a finished shard; None if it is not finished."""
        try:
            with self._shard_path(file, number).open("rb") as opened:
                return list(json.loads(opened.readline())["problems"])
        except FileNotFoundError:
            return None

    def write_shard(self, result: ShardResult) -> None:
        """Writes a shard.

        Raises:
            OSError: if it cannot be written; it is then not there.
        """
        head = json.dumps({"problems": result.problems}).encode()

        def write(opened: IO[bytes]) -> None:
            opened.write(head + b"\n")
            opened.write(result.output)

        write_atomically(self._shard_path(result.file, result.number), write)

    def finish_file(self, file: int) -> None:
        """Joins the shards of a file, all of which are there, writes its record and removes them.

        Raises:
            OSError: if it cannot be written; the shards are then still there.
        """
        one = self.inputs[file]
        shards = [self._shard_path(file, number) for number in range(len(one.starts))]
        problems: list[str] = []
        place = self.path / one.path.name

        def write(opened: IO[bytes]) -> None:
            for shard in shards:
                with shard.open("rb") as source:
                    problems.extend(json.loads(source.readline())["problems"])
                    shutil.copyfileobj(source, opened, 1 << 20)

        write_atomically(place, write)
        with place.open("rb") as opened:
            record = {"name": one.path.name, "sha256": _hash(opened), "problems": problems}
        text = json.dumps(record, indent=1) + "\n"
        write_atomically(self._files / f"{file:05}.json", lambda out: out.write(text.encode()))
        for shard in shards:
            shard.unlink()

    def _shard_path(self, file: int, number: int) -> Path:
        return self._shards / f"{file:05}-{number:07}"


def _hash(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()
