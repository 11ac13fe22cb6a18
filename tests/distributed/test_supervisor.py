"""A job starts again after a fault, at most so often, and not after an error of the user's."""

import sys

import pytest

from heed.distributed.processes import Worker
from heed.distributed.supervisor import LOST, supervise
from heed.errors import ClusterError


def job(tmp_path, *ends):
    """Make two workers: the second ends as the code for this start says, the first loses it then."""
    starts = []

    def make_workers():
        starts.append(ends[min(len(starts), len(ends) - 1)])
        first = f"import sys, time; time.sleep(0.2); sys.exit({LOST if starts[-1] else 0})"
        return [
            Worker("worker 0", [sys.executable, "-c", first]),
            Worker("worker 1", [sys.executable, "-c", starts[-1] or "pass"]),
        ]

    return make_workers, starts


KILLED = "import os; os.kill(os.getpid(), 9)"


def test_it_starts_again_until_it_succeeds(tmp_path):
    make_workers, starts = job(tmp_path, KILLED, KILLED, "")
    notes = []
    assert supervise(make_workers, 3, notes.append).failure is None
    assert starts == [KILLED, KILLED, ""]
    assert notes == [
        f"worker 1 was killed by SIGKILL; starting again from the last checkpoint ({n} of 3 restarts)"
        for n in (1, 2)
    ]


def test_it_gives_up(tmp_path):
    make_workers, starts = job(tmp_path, KILLED)
    with pytest.raises(ClusterError, match="gave up after 1 restarts: worker 1 was killed"):
        supervise(make_workers, 1, lambda _: None)
    assert len(starts) == 2


def test_an_error_of_the_user_is_final(tmp_path):
    make_workers, starts = job(tmp_path, "import sys; sys.exit('heed: the disk is full')")
    with pytest.raises(ClusterError, match=r"^worker 1: the disk is full$"):
        supervise(make_workers, 3, lambda _: None)
    assert len(starts) == 1
