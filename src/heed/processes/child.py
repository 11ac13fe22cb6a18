"""A child Python process with a message channel; it exits with its parent.

The channel is a pair of pipes that carry pickled values, each after its length: the child's standard input, and a copy
of its standard output. What the child prints goes to stderr. The child reads its input all the time: the end of the
input is the end of the parent. On a third pipe the child sends a beat each second, so that its parent notices when it
is stopped or frozen.

All pipes are read from their descriptors: a thread that waits for a Python file holds its lock, and an interpreter that
ends meanwhile aborts ("could not acquire lock for <stdin>").
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

SILENCE = 30.0  # seconds
_BEATS = "HEED_CHILD_BEATS"  # the file descriptor of the pipe for beats
_PATH = "HEED_CHILD_PATH"  # sys.path of the parent
_BEAT = 1.0  # seconds between two
_LENGTH = 8  # bytes of the length before a value
_MOST_READ = 1 << 20  # bytes at once
_BOOTSTRAP = f"""
import json, os, sys
sys.path[:] = json.loads(os.environ.pop({_PATH!r}))
from heed.processes.child import run_child
run_child()
"""


def count_threads(threads: int | None, processes: int) -> int:
    """Return the threads of each of several processes, 1 or more.

    Args:
        threads: those of all together; None: a thread for each processor of this process.
        processes: their number.
    """
    if threads is None:
        have = hasattr(os, "sched_getaffinity")
        threads = len(os.sched_getaffinity(0)) if have else os.cpu_count() or 1
    return max(1, threads // processes)


class ChildEndedError(Exception):
    """The child has ended; the message says how."""


class Child:
    """A child process that runs `target(channel)`.

    Ctrl-C in a terminal does not reach it: its parent decides what happens.

    Args:
        target: what the child calls with its `Channel`; a picklable callable of an importable module.
        environment: variables to set beside those of this process.
        descriptors: file descriptors that the child inherits, with the same numbers.
        silence: seconds without a sign of life after which the child is killed; a child that computes gives signs.

    Attributes:
        pid: its process number.

    Raises:
        OSError: if it cannot be started.
    """

    def __init__(
        self,
        target: Callable[[Channel], object],
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        silence: float = SILENCE,
    ) -> None:
        self._beats = _Beats(silence) if os.name == "posix" else None
        own = {_PATH: json.dumps([one for one in sys.path if isinstance(one, str)])}
        if self._beats is not None:
            own[_BEATS] = str(self._beats.write)
            descriptors = [*descriptors, self._beats.write]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **(environment or {}), **own},
                pass_fds=descriptors,
                start_new_session=True,
            )
        except BaseException:
            if self._beats is not None:
                self._beats.close()
            raise
        if self._beats is not None:
            self._beats.start(self._process)
        self.pid = self._process.pid
        with contextlib.suppress(ChildEndedError):  # `receive` says so
            self.send(target)

    def send(self, value: object) -> None:
        """Send a value.

        Raises:
            ChildEndedError: if the child has ended.
        """
        try:
            _write(self._process.stdin.fileno(), value)  # type: ignore[union-attr]
        except OSError:
            raise ChildEndedError(self._describe_end()) from None

    def receive(self) -> Any:
        """Wait for the child's next value.

        Raises:
            ChildEndedError: if the child has ended.
        """
        try:
            return _read(self._process.stdout.fileno())  # type: ignore[union-attr]
        except (EOFError, OSError, ValueError):  # ended, perhaps while it was writing
            raise ChildEndedError(self._describe_end()) from None

    def signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        self._process.send_signal(number)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end; whether it has ended within some seconds (None: no limit)."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it at once and close the channel; nobody may be in `receive`."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # what is not sent yet has no reader
                pipe.close()  # type: ignore[union-attr]
        if self._beats is not None:
            self._beats.close()

    def _describe_end(self) -> str:
        code = self._process.wait()
        if self._beats is not None and self._beats.missed:
            return f"gave no sign of life for {self._beats.silence:.0f} s"
        if code >= 0:
            return f"ended with exit status {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"


class _Beats:
    """The signs of life of a child, on a pipe; a thread waits for them.

    Args:
        silence: seconds without one after which it kills the child.

    Attributes:
        write: the child's end of the pipe.
        missed: whether it has killed the child.
    """

    def __init__(self, silence: float) -> None:
        self.silence, self.missed = silence, False
        self._read, self.write = os.pipe()
        self._thread: threading.Thread | None = None

    def start(self, process: subprocess.Popen[bytes]) -> None:
        """Begins to wait for them; the child has its end."""
        os.close(self.write)
        self._thread = threading.Thread(target=self._wait, args=(process,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the pipe; the child has ended, or never began."""
        if self._thread is None:
            os.close(self.write)
        else:
            self._thread.join()
        os.close(self._read)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        while poll.poll(1000 * self.silence):
            if not os.read(self._read, 4096):
                return
        self.missed = True
        process.kill()


class Channel:
    """The channel of a child to its parent.

    Args:
        read, write: the descriptors of the pipes.

    Attributes:
        on_end: called on another thread when the parent has ended; the default ends this process at once.
        parent_ended: whether it has.
    """

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._writing = threading.Lock()
        self.parent_ended = False
        self._received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.on_end: Callable[[], object] = lambda: os._exit(1)

    def start(self) -> None:
        """Begins to read."""
        threading.Thread(target=self._run, name="heed-parent", daemon=True).start()

    def receive(self) -> Any:
        """Wait for the parent's next value."""
        return self._received.get()

    def send(self, value: object) -> None:
        """Send a value to the parent."""
        with self._writing, contextlib.suppress(OSError):  # the parent has ended: see `on_end`
            _write(self._write, value)

    def _run(self) -> None:
        while True:
            try:
                self._received.put(_read(self._read))
            except (EOFError, OSError):
                break
        self.parent_ended = True
        self.on_end()


def run_child() -> None:
    """Run a child's program."""
    read, write = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    _start_beats()
    channel = Channel(read, write)
    try:
        target = _read(read)
    except EOFError:  # the parent has ended
        return
    channel.start()
    target(channel)


def _start_beats() -> None:
    """Give the parent a sign of life each second."""
    descriptor = os.environ.pop(_BEATS, None)
    if descriptor is None:
        return
    os.set_inheritable(int(descriptor), False)
    threading.Thread(target=_beat, args=(int(descriptor),), daemon=True).start()


def _beat(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # the parent has ended
        while True:
            os.write(descriptor, b".")
            time.sleep(_BEAT)


def _write(pipe: int, value: object) -> None:
    data = pickle.dumps(value)
    rest = memoryview(len(data).to_bytes(_LENGTH, "little") + data)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def _read(pipe: int) -> Any:
    length = int.from_bytes(_read_bytes(pipe, _LENGTH), "little")
    return pickle.loads(_read_bytes(pipe, length))


def _read_bytes(pipe: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(pipe, min(count, _MOST_READ))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
