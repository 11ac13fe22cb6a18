"""A Python process of this one's own, and a channel to it. It ends when this process ends, however that happens.

The channel is a pair of pipes that carry pickled values: the child's standard input, and a copy of its standard output.
What the child prints goes to stderr. The child reads its input all the time: the end of the input is the end of the
parent.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

_BOOTSTRAP = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from heed.seq2seq.child_process import run_child
run_child()
"""


def count_threads(threads: int | None, processes: int) -> int:
    """The threads of each of several processes, 1 or more.

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
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            pass_fds=descriptors,
            start_new_session=True,
        )
        self.pid = self._process.pid
        with contextlib.suppress(ChildEndedError):  # `receive` says so
            self.send(sys.path)
            self.send(target)

    def send(self, value: object) -> None:
        """Sends a value.

        Raises:
            ChildEndedError: if the child has ended.
        """
        try:
            _write(self._process.stdin, value)
        except OSError:
            raise ChildEndedError(self._describe_end()) from None

    def receive(self) -> Any:
        """Waits for the child's next value.

        Raises:
            ChildEndedError: if the child has ended.
        """
        try:
            return pickle.load(self._process.stdout)  # type: ignore[arg-type]
        except (
            EOFError,
            OSError,
            ValueError,
            pickle.UnpicklingError,
        ):  # ended, perhaps while it was writing
            raise ChildEndedError(self._describe_end()) from None

    def signal(self, number: int) -> None:
        """Sends it a signal, if it has not ended."""
        self._process.send_signal(number)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for its end; whether it has ended within some seconds (None: no limit)."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends it at once and closes the channel; nobody may be in `receive`."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # what is not sent yet has no reader
                pipe.close()  # type: ignore[union-attr]

    def _describe_end(self) -> str:
        code = self._process.wait()
        if code >= 0:
            return f"ended with exit status {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"


class Channel:
    """The channel of a child to its parent.

    Args:
        read, write: the pipes.

    Attributes:
        on_end: called on another thread when the parent has ended; the default ends this process at once.
    """

    def __init__(self, read: BinaryIO, write: BinaryIO) -> None:
        self._read, self._write = read, write
        self._received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.on_end: Callable[[], object] = lambda: os._exit(1)

    def start(self) -> None:
        """Begins to read."""
        threading.Thread(target=self._run, name="heed-parent", daemon=True).start()

    def receive(self) -> Any:
        """Waits for the parent's next value."""
        return self._received.get()

    def send(self, value: object) -> None:
        """Sends a value to the parent."""
        with contextlib.suppress(OSError):  # the parent has ended; `on_end` is called
            _write(self._write, value)

    def _run(self) -> None:
        while True:
            try:
                self._received.put(pickle.load(self._read))
            except (EOFError, OSError, pickle.UnpicklingError):
                break
        self.on_end()


def run_child() -> None:
    """The program of a child."""
    write = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    channel = Channel(sys.stdin.buffer, write)
    target = pickle.load(sys.stdin.buffer)
    channel.start()
    target(channel)


def _write(pipe: BinaryIO | Any, value: object) -> None:
    pickle.dump(value, pipe)
    pipe.flush()
