"""The folder in which the processes of a server share their metrics.

prometheus_client keeps the values of each process in files that it maps into memory. A page of such a file that finds
no room on a full disk ends the process by SIGBUS, so the room is taken before. Where there is none, a process keeps its
metrics to itself: metrics may be lost, translations not.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

# With this variable prometheus_client keeps the values in files of a folder, and adds them up.
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_KINDS = ("counter", "histogram", "gauge_livesum")  # those of `Metrics`; a file each
_ROOM = 1 << 20  # bytes of a file: ten times what all paths and statuses take


@contextlib.contextmanager
def make_metrics_folder() -> Iterator[Path | None]:
    """Make the folder for the block; None if nothing can be written."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="heed-metrics-", ignore_cleanup_errors=True)
    except OSError:
        yield None
        return
    with folder as path:
        yield Path(path)


def share_metrics(folder: Path, number: int) -> OSError | None:
    """Let this process share its metrics; called before `Metrics` is imported.

    One that replaces another takes its number, and its counters. Returns why there is no room, if there is none: the
    metrics of this process then stay its own.
    """
    os.environ.pop(SHARED_FOLDER, None)  # a user's
    try:
        for kind in _KINDS:
            _take_room(folder / f"{kind}_{number}.db")
    except OSError as error:
        return error
    os.environ[SHARED_FOLDER] = str(folder)
    from prometheus_client import values

    values.ValueClass = values.MultiProcessValue(lambda: number)
    return None


def _take_room(path: Path) -> None:
    """Make a file of zeros that has its place on the disk, unless it is there."""
    if path.exists():
        return
    unfinished = path.with_suffix(".tmp")  # other processes read each .db file
    try:
        with unfinished.open("wb") as file:
            file.write(bytes(_ROOM))
            file.flush()
            os.fsync(file.fileno())  # some disks find out late that they are full
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def forget_process(folder: Path, number: int) -> None:
    """Drop the waiting texts of a process that has ended; its counters stay in the sums."""
    (folder / f"gauge_livesum_{number}.db").unlink(missing_ok=True)
