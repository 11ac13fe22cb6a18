"""Starts worker processes on this machine, watches them, and stops all of them when one fails.

The supervisor::

    workers = [
        Worker(f"worker {i}", [sys.executable, "-m", "heed", "translate", ...], log=folder / f"worker-{i}.log")
        for i in range(4)
    ]
    outcome = run_processes(workers, silence=60)
    if outcome.signal:  # Ctrl-C, SIGTERM or SIGHUP, which every worker received too
        sys.exit(128 + outcome.signal)
    if outcome.failure:
        sys.exit(outcome.failure.describe())  # "worker 2 was killed by SIGKILL"

A worker, only if the supervisor sets `silence`::

    start_heartbeat()  # before anything slow, such as importing TensorFlow

No worker outlives its supervisor: it is killed if the supervisor is killed (on Linux), and `run_processes` returns, or
raises, after the last one has ended. Only for POSIX systems.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from heed.processes.signals import receive_signals

_HEARTBEAT = "HEED_HEARTBEAT"  # the file descriptor of a pipe to the supervisor
_BEAT = 1.0  # seconds between two beats
_POLL = 0.1  # seconds between two looks at the workers
_OWN = "heed:"  # begins a line of heed's about an error
_LATE = 5.0  # seconds without heartbeat that explain why others lost a worker
_FROZEN = 5.0  # seconds between two looks that mean that the supervisor did not run
_SETTLE = 0.5  # seconds in which other failures may still turn out to be the cause
_LONGEST_REPORT = 2000  # bytes; a pipe takes so many at once or not at all
_LINE_BYTES = 2**16  # of a log's end, searched for the last line
# Runs before the command, in the same process: the kernel kills the worker when the supervisor dies. Popen's
# `preexec_fn` would do it too, but may deadlock in a process with threads.
_BOOTSTRAP = """
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() != int(sys.argv[1]):
    os._exit(137)  # the supervisor died first
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"cannot start {sys.argv[2]}: {error.strerror}")
"""


@dataclass(frozen=True)
class Worker:
    """A process to start.

    Args:
        name: its name in messages, such as "worker 0".
        command: the program and its arguments.
        environment: variables to set beside those of the supervisor; None removes one.
        log: the file that its output is appended to; its folder is made. None: a temporary one.
        show: whether its stderr is also shown on the supervisor's, apart from lines that begin with "heed:", which the
            supervisor reports, and its stdout goes to the supervisor's instead of to the log.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str | None] = field(default_factory=dict)
    log: Path | None = None
    show: bool = False


@dataclass(frozen=True)
class Exit:
    """The end of a worker.

    Args:
        name: of the worker.
        code: its exit status; negative: the signal that killed it.
        line: its report; else the last line of its log that begins with "heed:", without that; else the last line of
            its log. It may be empty.
        silent: for how many seconds it had given no heartbeat when the supervisor killed it; 0 if it did not hang.
        stopped: whether the supervisor killed it because another one failed.
    """

    name: str
    code: int
    line: str
    silent: float = 0.0
    stopped: bool = False

    def describe(self) -> str:
        """One line that names the worker and says how it ended.

        Example:
            >>> Exit("worker 1", -9, "").describe()
            'worker 1 was killed by SIGKILL'
            >>> Exit("worker 1", 1, "no space left").describe()
            'worker 1: no space left'
        """
        if self.silent:
            return f"{self.name} hung: it gave no sign of life for {self.silent:.0f} s"
        if self.code < 0:
            return f"{self.name} was killed by {_signal_name(-self.code)}"
        if self.code and not self.line:
            return f"{self.name} ended with exit status {self.code}"
        return f"{self.name}: {self.line}" if self.code else f"{self.name} is done"


@dataclass(frozen=True)
class Outcome:
    """The ends of all workers.

    Args:
        exits: one for each worker, in the order given.
        failure: the failure that stopped the others, or None.
        signal: the signal that was passed on to the workers, or 0.
    """

    exits: tuple[Exit, ...]
    failure: Exit | None = None
    signal: int = 0


def run_processes(
    workers: Sequence[Worker],
    *,
    silence: float | None = None,
    grace: float = 5.0,
    follower_status: int | None = None,
) -> Outcome:
    """Start the workers, wait for all of them, and stop them all when one fails.

    A failure is an exit status other than 0, a signal, or a worker without heartbeat. The others get SIGTERM then, and
    SIGKILL after `grace` seconds.

    SIGINT, SIGTERM and SIGHUP are passed on to every worker, if this runs in the main thread. The workers may take as
    long as they need to end; `grace` seconds after a second signal they are killed.

    Args:
        workers: the processes.
        silence: seconds without heartbeat after which a worker counts as hung; its workers call `start_heartbeat`. None
            does not look.
        grace: seconds between SIGTERM and SIGKILL; 0 sends SIGKILL at once.
        follower_status: the exit status of a worker that ends because another one failed: it is not the cause.

    Returns:
        How they ended.

    Raises:
        OSError: if a log cannot be written or a process cannot be started. None is left running.
    """
    if os.name != "posix":
        raise OSError(0, "several processes need Linux or macOS")
    with contextlib.ExitStack() as stack:
        supervisor = _Supervisor(grace, silence, follower_status)
        stack.callback(supervisor.kill_all)
        stack.enter_context(receive_signals(supervisor.receive))
        for worker in workers:
            supervisor.start(worker)
        return supervisor.wait()


def start_heartbeat() -> None:
    """Tells the supervisor once a second that this process runs; does nothing without a supervisor.

    A daemon thread does it. A stopped or frozen process gives no beat; a main thread that waits does not matter.
    """
    global _pipe
    number = os.environ.pop(_HEARTBEAT, None)
    if number is None:
        return
    _pipe = int(number)
    os.set_inheritable(_pipe, False)
    threading.Thread(target=_beat, args=(_pipe,), daemon=True).start()


def report(line: str) -> None:
    """Tells the supervisor why this process ends, for `Exit.line`, even if its log is on a full disk.

    Does nothing without a supervisor, or before `start_heartbeat`.
    """
    if _pipe is not None:
        with contextlib.suppress(OSError):
            os.write(_pipe, " ".join(line.split()).encode()[:_LONGEST_REPORT] + b"\n")


_pipe: int | None = None  # of this process, to its supervisor


def _beat(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # the supervisor has ended
        while True:
            os.write(descriptor, b"\n")  # a line without a report
            time.sleep(_BEAT)


class _Process:
    """A running worker."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.end: Exit | None = None
        self.stopped = False
        self.silent = 0.0
        self._log = _open_log(worker.log)
        self._start = self._shown = self._log.seek(0, os.SEEK_END)
        self.heartbeat, beats = os.pipe()
        os.set_blocking(self.heartbeat, False)
        self._received = b""
        environment = {**os.environ, **worker.environment, _HEARTBEAT: str(beats)}
        bootstrap = [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, str(os.getpid())]
        try:
            self._popen = subprocess.Popen(
                [*bootstrap, *worker.command],
                env={name: value for name, value in environment.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=None if worker.show else self._log,
                stderr=self._log,
                pass_fds=[beats],
                start_new_session=True,  # a terminal's Ctrl-C comes once, from the supervisor
            )
        except BaseException:
            self.close()
            raise
        finally:
            os.close(beats)
        self.last_beat = time.monotonic()

    def poll(self) -> Exit | None:
        """Return its end once it has one; show its new output."""
        code = self._popen.poll()
        if code is not None and self.end is None:
            self._send(signal.SIGKILL)  # processes that it left behind
            self.listen()
            self._show(ended=True)
            line = self._last_line()
            self.end = Exit(self.worker.name, code, line, self.silent, self.stopped)
        elif code is None:
            self._show()
        return self.end

    def listen(self) -> None:
        """Read heartbeats and a report."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.heartbeat, 4096):
                self.last_beat = time.monotonic()
                self._received = (self._received + data).lstrip(b"\n")

    def signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.end is None and self._popen.poll() is None:
            self._send(number)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, number)  # its session has its own number

    def close(self) -> None:
        """Close its files."""
        self._log.close()
        os.close(self.heartbeat)

    def wait(self) -> None:
        """Wait for its end."""
        self._popen.wait()

    def _show(self, ended: bool = False) -> None:
        """Copy whole new lines to stderr."""
        if not self.worker.show or sys.stderr is None:
            return
        while data := os.pread(self._log.fileno(), _LINE_BYTES, self._shown):
            if not ended and len(data) < _LINE_BYTES:
                data = data[: data.rfind(b"\n") + 1]
            self._shown += len(data)
            for line in data.splitlines(keepends=True):
                if not line.startswith(_OWN.encode()):
                    sys.stderr.write(line.decode(errors="replace"))
            sys.stderr.flush()
            if not data:
                break

    def _last_line(self) -> str:
        if self._received:
            return self._received.partition(b"\n")[0].decode(errors="replace")
        size = os.fstat(self._log.fileno()).st_size
        start = max(self._start, size - _LINE_BYTES)
        text = os.pread(self._log.fileno(), _LINE_BYTES, start).decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        own = [line for line in lines if line.startswith(_OWN)]
        return (own or lines or [""])[-1].removeprefix(_OWN).strip()


class _Supervisor:
    """All workers of one call."""

    def __init__(self, grace: float, silence: float | None, follower_status: int | None) -> None:
        self._grace, self._silence, self._follower_status = grace, silence, follower_status
        self._processes: list[_Process] = []
        self._signals: list[int] = []  # received
        self._kill_at: float | None = None
        self._listened = math.inf

    def start(self, worker: Worker) -> None:
        process = _Process(worker)
        self._processes.append(process)
        for number in self._signals:  # received meanwhile
            process.signal(number)

    def receive(self, number: int) -> None:
        """Pass a signal on to every worker."""
        self._signals.append(number)
        for process in self._processes:
            process.signal(number)
        if len(self._signals) > 1:
            self._kill_at = time.monotonic() + self._grace

    def wait(self) -> Outcome:
        failed = False
        while True:
            ends = [process.poll() for process in self._processes]
            if all(ends):
                break
            self._listen()
            hung = self._kill_hung()
            if not failed and (hung or any(end and end.code for end in ends)):
                failed = True
                if not self._signals:
                    self._stop_others()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._signal_all(signal.SIGKILL)
                self._kill_at = None
        exits = tuple(end for end in ends if end)
        number = self._signals[0] if self._signals else 0
        return Outcome(exits, None if number else self._cause(exits), number)

    def _listen(self) -> None:
        """Read heartbeats, and wait a little for them."""
        running = {one.heartbeat: one for one in self._processes if one.end is None}
        poll = select.poll()  # select.select takes no descriptors above 1023
        for descriptor in running:
            poll.register(descriptor, select.POLLIN)
        began = time.monotonic()
        if began > self._listened + _FROZEN:  # the whole machine stood still
            for process in self._processes:
                process.last_beat = began
        self._listened = began
        for descriptor, _ in poll.poll(1000 * _POLL):
            running[descriptor].listen()
        time.sleep(max(0.0, began + _POLL - time.monotonic()))

    def _kill_hung(self) -> bool:
        if self._silence is None:
            return False
        now, found = time.monotonic(), False
        for process in self._processes:
            silent = now - process.last_beat
            if process.end is None and silent > self._silence:
                process.silent, found = silent, True
                process.signal(signal.SIGKILL)
        return found

    def _stop_others(self) -> None:
        """Stop the rest, after a moment in which the cause may show."""
        until = time.monotonic() + _SETTLE
        while time.monotonic() < until and not all(one.poll() for one in self._processes):
            self._listen()
        ends = [process.end for process in self._processes if process.end]
        consequence = all(end.code in (0, self._follower_status) for end in ends)
        for process in self._processes:
            age = time.monotonic() - process.last_beat
            if consequence and self._silence and process.end is None and age > _LATE:
                process.silent = age  # the others noticed first
            process.stopped = process.end is None and not process.silent
        if self._grace > 0:
            self._signal_all(signal.SIGTERM)
        self._kill_at = time.monotonic() + self._grace

    def _signal_all(self, number: int) -> None:
        for process in self._processes:
            process.signal(number)

    def _cause(self, exits: Sequence[Exit]) -> Exit | None:
        """Return the failure to report: one that another worker caused comes last."""
        failures = [end for end in exits if end.code and not end.stopped]
        failures.sort(key=lambda end: (end.code == self._follower_status, not end.silent, end.code))
        return failures[0] if failures else None

    def kill_all(self) -> None:
        """End what still runs, and wait for it."""
        self._signal_all(signal.SIGKILL)
        for process in self._processes:
            process.wait()
            process.close()


def _open_log(path: Path | None) -> IO[bytes]:
    if path is None:
        return tempfile.TemporaryFile("a+b")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a+b")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
