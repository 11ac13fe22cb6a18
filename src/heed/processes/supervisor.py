"""Runs a job on worker processes and starts it again after a fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from heed.errors import ClusterError
from heed.processes.supervise import Outcome, Worker, run_processes

LOST = 75  # exit status of a worker that lost another one (EX_TEMPFAIL)
RESTARTS = 3
_FINAL = (1, 2)  # exit statuses of errors that the user has to fix: a restart would meet them again
SILENCE = 30.0  # seconds


def supervise(
    make_workers: Callable[[], Sequence[Worker]],
    restarts: int,
    note: Callable[[str], object],
    silence: float = SILENCE,
) -> Outcome:
    """Run workers to their common end.

    Args:
        make_workers: called before each start: makes the workers, and first meets those of other machines.
        restarts: the most restarts after a fault, 0 or more. A fault is a worker that is killed, crashes, hangs, or
            loses another one; the exit statuses 1 and 2 are errors that the user has to fix.
        note: called with a line before each restart.
        silence: seconds without heartbeat after which a worker counts as hung.

    Returns:
        The outcome of the last start: all workers succeeded, or a signal was passed on to them.

    Raises:
        ClusterError: if a worker failed for the last time; the line says which, and why.
        OSError: see `run_processes`.
    """
    number = 0
    while True:
        # SIGKILL at once: the others wait for the one that failed and can do nothing more.
        outcome = run_processes(make_workers(), silence=silence, grace=0, follower_status=LOST)
        failure = outcome.failure
        if failure is None:
            return outcome
        if failure.code in _FINAL and not failure.silent:
            raise ClusterError(failure.describe())
        if number == restarts:
            raise ClusterError(f"gave up after {restarts} restarts: {failure.describe()}")
        number += 1
        note(
            f"{failure.describe()}; starting again from the last checkpoint "
            f"({number} of {restarts} restarts)"
        )
