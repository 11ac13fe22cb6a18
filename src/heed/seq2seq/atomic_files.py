"""Writes files as a whole or not at all, locks files, and finds free paths."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from heed.errors import TaskError
from heed.files import open_regular, sync_folder, temporary_path


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file so that the old or the new one is there, whole, whatever happens.

    The bytes go to a temporary file in the same folder, are flushed to the disk, and the file is renamed. Who may read
    it is what the umask says, as for any new file.
    """
    temporary = temporary_path(path)
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def lock(path: Path, held: str) -> Iterator[None]:
    """Lock a file in the block; the system releases it when the process ends, however it ends.

    It locks nothing on systems and file systems without locks. `held` is the message if another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with open_regular(path, "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TaskError(held) from None
        except OSError:  # a file system without locks
            pass
        yield


def free_path(path: Path) -> Path:
    """Return the first of `path`, `path-2`, `path-3` ... that does not exist.

    Example:
        >>> free_path(Path("surely-not-here")).name
        'surely-not-here'
    """
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
