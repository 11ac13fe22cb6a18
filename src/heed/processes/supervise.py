"""Runs a fixed group of children: when one fails, all are stopped, and started again at most so often.

The supervisor::

    def make_workers():
        return [Worker(f"worker {i}", functools.partial(train, i), log=folder / f"worker-{i}.log") for i in range(4)]

    outcome = supervise(make_workers, restarts=3, note=print)
    if outcome.signal:  # Ctrl-C, SIGTERM or SIGHUP, which every worker received too
        sys.exit(128 + outcome.signal)

A worker sends its result, or why it fails, in a line, before it exits with a status. No worker outlives its supervisor.
Only for POSIX systems.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from heed.errors import ClusterError
from heed.processes.child import SILENCE, Channel, Child, ChildEndedError
from heed.processes.signals import receive_signals

LOST = 75  # exit status of a worker that lost another one (EX_TEMPFAIL)
RESTARTS = 3
_FINAL = (1, 2)  # exit statuses of errors that the user has to fix: a restart would meet them again
_POLL = 0.1  # seconds between two looks at the workers
_LATE = 5.0  # seconds without a sign of life that explain why others lost a worker
_SETTLE = 0.5  # seconds in which other failures may still turn out to be the cause
_LINE_BYTES = 2**16  # of a log's end, searched for the last line


@dataclass(frozen=True)
class Worker:
    """A process to start."""

    name: str  # in messages, such as "worker 0"
    target: Callable[[Channel], object]  # picklable, of an importable module
    environment: Mapping[str, str] = field(default_factory=dict)  # beside that of the supervisor
    log: Path | None = None  # its output is appended to it; None: a temporary file
    show: bool = False  # its output on the supervisor's stderr, too


@dataclass(frozen=True)
class Exit:
    """The end of a worker."""

    name: str
    code: int  # its exit status; negative: the signal that killed it
    how: str  # as in "was killed by SIGKILL"
    said: Any = ""  # the last value that it sent, else the last line of its log
    silent: bool = False  # killed because it gave no sign of life
    stopped: bool = False  # killed because another one failed

    def describe(self) -> str:
        """Return one line that names the worker and says how it ended.

        Example:
            >>> Exit("worker 1", -9, "was killed by SIGKILL").describe()
            'worker 1 was killed by SIGKILL'
            >>> Exit("worker 1", 1, "ended with exit status 1", "no space left").describe()
            'worker 1: no space left'
        """
        own = self.said if self.code > 0 and not self.silent else ""
        return f"{self.name}: {own}" if own else f"{self.name} {self.how}"


@dataclass(frozen=True)
class Outcome:
    """The ends of all workers, in the order given."""

    exits: tuple[Exit, ...]
    failure: Exit | None = None  # that stopped the others
    signal: int = 0  # that was passed on to the workers


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
        silence: seconds without a sign of life after which a worker counts as hung.

    Returns:
        The outcome of the last start: all workers succeeded, or a signal was passed on to them.

    Raises:
        ClusterError: if a worker failed for the last time; the line says which, and why.
        OSError: see `run_group`.
    """
    number = 0
    while True:
        outcome = run_group(make_workers(), silence)
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


def run_group(workers: Sequence[Worker], silence: float = SILENCE) -> Outcome:
    """Start the workers, wait for all of them, and kill them all when one fails.

    A failure is an exit status other than 0, a signal, or a worker that gives no sign of life. The others wait for it
    and can do nothing more. A worker that ends with the status `LOST` is not the cause.

    SIGINT, SIGTERM and SIGHUP are passed on to every worker, if this runs in the main thread. The workers may take as
    long as they need to end; a second signal kills them.

    Raises:
        OSError: if a log cannot be written or a process cannot be started. None is left running.
    """
    if os.name != "posix":
        raise OSError(0, "several processes need Linux or macOS")
    group = _Group()
    with contextlib.closing(group), receive_signals(group.receive):
        for worker in workers:
            group.start(worker, silence)
        return group.wait()


class _Process:
    """A running worker."""

    def __init__(self, worker: Worker, silence: float) -> None:
        self.worker = worker
        self.end: Exit | None = None
        self.stopped = False
        self._shows = worker.show and sys.stderr is not None
        self._said: Any = None
        self._log = _open_log(worker.log)
        self._start = self._shown = self._log.seek(0, os.SEEK_END)
        try:
            self.child = Child(
                worker.target,
                worker.environment,
                silence=silence,
                output=self._log.fileno(),
                on_value=self._keep,
            )
        except BaseException:
            self._log.close()
            raise

    def poll(self) -> Exit | None:
        """Return its end once it has one; show its new output."""
        if self.end is None:
            end = self.child.end
            self._show(ended=end is not None)
            if end is not None:
                silent = bool(self.child.silent)
                said = self._log_reason(end.code)
                self.end = Exit(self.worker.name, end.code, str(end), said, silent, self.stopped)
        return self.end

    def close(self) -> None:
        """End it at once, and close its files."""
        self.child.close()
        self._log.close()

    def _keep(self, value: Any) -> None:
        if not isinstance(value, ChildEndedError):
            self._said = value

    def _show(self, ended: bool) -> None:
        """Copy whole new lines to stderr."""
        while self._shows and (data := os.pread(self._log.fileno(), _LINE_BYTES, self._shown)):
            if not ended and len(data) < _LINE_BYTES:
                data = data[: data.rfind(b"\n") + 1]
            self._shown += len(data)
            try:
                sys.stderr.write(data.decode(errors="replace"))
                sys.stderr.flush()
            except OSError:  # its terminal is gone: the workers may still have to save their work
                self._shows = False
            if not data:
                break

    def _log_reason(self, code: int) -> Any:
        """Return its last value, or the last line of its log; write why it fails to the log."""
        if self._said is None:
            return self._last_line()
        if code:
            with contextlib.suppress(OSError):  # its disk is full
                os.write(self._log.fileno(), f"heed: {self._said}\n".encode())
        return self._said

    def _last_line(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        start = max(self._start, size - _LINE_BYTES)
        text = os.pread(self._log.fileno(), _LINE_BYTES, start).decode(errors="replace")
        return ([line for line in text.splitlines() if line.strip()] or [""])[-1].strip()


class _Group:
    """All workers of one call."""

    def __init__(self) -> None:
        self._processes: list[_Process] = []
        self._signals: list[int] = []  # received

    def start(self, worker: Worker, silence: float) -> None:
        process = _Process(worker, silence)
        self._processes.append(process)
        if self._signals:  # received meanwhile
            process.child.signal(self._number())

    def receive(self, number: int) -> None:
        """Pass a signal on to every worker."""
        self._signals.append(number)
        self._signal_all(self._number())

    def _number(self) -> int:
        """Return the signal to pass on: the first that came, then SIGKILL."""
        return self._signals[0] if len(self._signals) == 1 else signal.SIGKILL

    def wait(self) -> Outcome:
        failed = False
        while not all(ends := self._poll()):
            time.sleep(_POLL)
            if not failed and any(end and end.code for end in ends):
                failed = True
                if not self._signals:
                    self._stop_others()
        exits = tuple(end for end in ends if end)
        number = self._signals[0] if self._signals else 0
        return Outcome(exits, None if number else self._cause(exits), number)

    def _poll(self) -> list[Exit | None]:
        return [process.poll() for process in self._processes]

    def _stop_others(self) -> None:
        """Stop the rest, after a moment in which the cause may show."""
        until = time.monotonic() + _SETTLE
        while time.monotonic() < until and not all(self._poll()):
            time.sleep(_POLL)
        ends = [process.end for process in self._processes if process.end]
        consequence = all(end.code in (0, LOST) for end in ends)
        for process in self._processes:
            age = time.monotonic() - process.child.last_beat
            if consequence and process.end is None and age > _LATE:
                process.child.give_up()  # the others noticed first
            process.stopped = process.end is None and not process.child.silent
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        for process in self._processes:
            process.child.signal(number)

    def _cause(self, exits: Sequence[Exit]) -> Exit | None:
        """Return the failure to report: one that another worker caused comes last."""
        failures = [end for end in exits if end.code and not end.stopped]
        failures.sort(key=lambda end: (end.code == LOST, not end.silent, end.code))
        return failures[0] if failures else None

    def close(self) -> None:
        """End what still runs, and wait for it."""
        for process in self._processes:
            process.close()


def _open_log(path: Path | None) -> IO[bytes]:
    if path is None:
        return tempfile.TemporaryFile("a+b")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a+b")
