"""Regular files, their checksums, new folders as a whole or not at all, and the names of what is not whole yet."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

_LONGEST = 100  # bytes of a file's name in a temporary one; file systems allow 143 or 255 in all


def open_regular(path: str | os.PathLike[str], mode: str = "rb", **options: Any) -> IO[Any]:
    """Open a file as `open` does, but refuse pipes and devices at once: reading one could block forever."""
    wait_for_nobody = getattr(os, "O_NONBLOCK", 0)  # Windows has none
    file = open(  # noqa: SIM115 (the caller closes it)
        path,
        mode,
        opener=lambda name, flags: os.open(name, flags | wait_for_nobody, 0o666),
        **options,
    )
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def sha256_of(file: IO[bytes]) -> str:
    """Return the SHA-256 of what is left to read of an open file, in hexadecimal digits."""
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def temporary_prefix(name: str) -> str:
    """Return the beginning of the names of temporary files for a file of this name.

    Example:
        >>> temporary_prefix("a.txt")
        '.a.txt.'
    """
    return f".{os.fsencode(name)[:_LONGEST].decode(errors='ignore')}."


def temporary_path(path: Path) -> Path:
    """Return a new name beside a path, for what becomes it when it is whole."""
    return path.with_name(f"{temporary_prefix(path.name)}{secrets.token_hex(4)}.tmp")


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder, which becomes `path` on success and is deleted on failure.

    `path` must not exist, or be empty; a link to an empty folder stays one. Who may read it and what is in it is what
    the umask says.
    """
    place = path.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(place)
    temporary.mkdir()
    try:
        yield temporary
        temporary.replace(place)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(place.parent)


def sync_folder(path: Path) -> None:
    """Make a rename survive a power cut, where the system can."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:  # Windows opens no folders
        return
    try:
        os.fsync(handle)
    except OSError:  # some network file systems cannot
        pass
    finally:
        os.close(handle)
