"""A child Python process with a message channel; it exits with its parent.

The channel is a pair of pipes: the child's standard input, and a copy of its standard output. What the child prints
goes to its stderr. A message is a pickled value after its length; an empty one is a beat, which the child sends each
second, so that its parent notices when it is stopped or frozen. Both read all the time: the end of the child's input
is the end of the parent.

The pipes are read from their descriptors: a thread that waits for a Python file holds its lock, and an interpreter that
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
_PATH = "HEED_CHILD_PATH"  # sys.path of the parent
_BEAT = 1.0  # seconds between two
_FROZEN = 5.0  # seconds beyond a wait that mean that this process did not run either
_LENGTH = 8  # bytes of the length before a value
_MOST_READ = 1 << 20  # bytes at once
_BOOTSTRAP = f"""
import json, os, sys
sys.path[:] = json.loads(os.environ.pop({_PATH!r}))
from heed.processes.child import run_child
run_child()
"""


def count_threads(threads: int | None, processes: int) -> int:
    """Return the threads of each of several processes, 1 or more: a share of these, or of the processors."""
    if threads is None:
        have = hasattr(os, "sched_getaffinity")
        threads = len(os.sched_getaffinity(0)) if have else os.cpu_count() or 1
    return max(1, threads // processes)


class ChildEndedError(Exception):
    """The child has ended; the message says how.

    Attributes:
        code: its exit status; negative: the signal that killed it.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Child:
    """A child process that runs `target(channel)`.

    Ctrl-C in a terminal does not reach it: its parent decides what happens. A signal of the parent also reaches what
    the child has started, and nothing of that outlives it.

    Args:
        target: what the child calls with its `Channel`; a picklable callable of an importable module.
        environment: variables to set beside those of this process.
        descriptors: file descriptors that the child inherits, with the same numbers.
        silence: seconds without a sign of life after which the child is killed; a child that computes gives signs.
        output: the descriptor of its stderr; None: that of this process.
        on_value: called on another thread with each value, last with a ChildEndedError; None: they wait for `receive`.

    Attributes:
        end: how it ended, once all that it sent has been received; None before.
        last_beat: when it gave its last sign of life, in the time of `time.monotonic`.
        silent: for how many seconds it had given none when it was killed for that; else 0.

    Raises:
        OSError: if it cannot be started.
    """

    def __init__(
        self,
        target: Callable[[Channel], object],
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
        silence: float = SILENCE,
        output: int | None = None,
        on_value: Callable[[Any], object] | None = None,
    ) -> None:
        self._silence, self.silent = silence, 0.0
        self.end: ChildEndedError | None = None
        self._values: queue.SimpleQueue[Any] = queue.SimpleQueue()
        program = pickle.dumps(target)  # no process is left if it cannot be pickled
        path = json.dumps([one for one in sys.path if isinstance(one, str)])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env={**os.environ, **(environment or {}), _PATH: path},
            pass_fds=descriptors,
            start_new_session=True,
        )
        self.last_beat = time.monotonic()
        self._reader = threading.Thread(
            target=self._read, args=(on_value or self._values.put,), daemon=True
        )
        self._reader.start()
        with contextlib.suppress(OSError):  # it has ended: `receive` says so
            _write(self._process.stdin.fileno(), program)  # type: ignore[union-attr]

    def send(self, value: object) -> None:
        """Send a value.

        Raises:
            ChildEndedError: if the child has ended.
        """
        try:
            _write(self._process.stdin.fileno(), pickle.dumps(value))  # type: ignore[union-attr]
        except OSError:
            raise self._describe_end() from None

    def receive(self) -> Any:
        """Wait for the child's next value; return the error if it cannot be read.

        Raises:
            ChildEndedError: if the child has ended.
        """
        value = self._values.get()
        if isinstance(value, ChildEndedError):
            self._values.put(value)
            raise value
        return value

    def signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self._process.poll() is None:
            self._signal_all(number)

    def kill(self) -> None:
        """End it at once."""
        self.signal(signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
        self._process.wait()

    def give_up(self) -> None:
        """End it at once, as one that gives no sign of life."""
        self.silent = self.silent or time.monotonic() - self.last_beat
        self.kill()

    def close(self) -> None:
        """End it at once and close the channel; not in `on_value`."""
        self.kill()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # what is not sent yet has no reader
                pipe.close()  # type: ignore[union-attr]

    def _signal_all(self, number: int) -> None:
        """Send a signal to its session, which has its number."""
        if os.name == "nt":
            self._process.send_signal(number)
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _read(self, put: Callable[[Any], object]) -> None:
        """Pass on what it sends, and how it ended."""
        pipe = self._process.stdout.fileno()  # type: ignore[union-attr]
        with contextlib.suppress(EOFError, OSError):  # ended, perhaps while it was writing
            while True:
                if data := _read_message(pipe, self._await_sign):
                    put(_load(data))
        end = self._describe_end()
        if os.name != "nt":
            self._signal_all(signal.SIGKILL)  # what it left behind
        self.end = end
        put(end)

    def _await_sign(self, pipe: int) -> None:
        """Wait until there is something to read; kill the child if it is silent for too long.

        Raise EOFError if it has ended, and a process that it forked holds the pipe.
        """
        if os.name == "nt":
            return
        poll = select.poll()  # select.select takes no descriptors above 1023
        poll.register(pipe, select.POLLIN)
        while True:
            began = time.monotonic()
            ended = self._process.poll() is not None  # before: what it sent last is read first
            ready = poll.poll(1000 * _BEAT)
            now = time.monotonic()
            if ready or now - began > _BEAT + _FROZEN:  # or the whole machine stood still
                self.last_beat = now
            elif ended:
                raise EOFError
            elif now - self.last_beat > self._silence:
                self.give_up()
            if ready:
                return

    def _describe_end(self) -> ChildEndedError:
        """Wait for its end, and return it in words."""
        code = self._process.wait()
        if self.silent:
            how = f"gave no sign of life for {self.silent:.0f} s"
        elif code >= 0:
            how = f"ended with exit status {code}"
        else:
            names = {one.value: one.name for one in signal.Signals}
            how = f"was killed by {names.get(-code, f'signal {-code}')}"
        return ChildEndedError(how, code)


class Channel:
    """The channel of a child to its parent.

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

    def start(self, target: Callable[[], object]) -> None:
        """Begin to read or to beat, on another thread."""
        threading.Thread(target=target, name="heed-parent", daemon=True).start()

    def receive(self) -> Any:
        """Wait for the parent's next value; return the error if it cannot be read."""
        return self._received.get()

    def send(self, value: object) -> None:
        """Send a value to the parent."""
        self._send(pickle.dumps(value))

    def _send(self, data: bytes) -> None:
        with self._writing, contextlib.suppress(OSError):  # the parent has ended: see `on_end`
            _write(self._write, data)

    def beat(self) -> None:
        """Give the parent a sign of life each second."""
        while not self.parent_ended:
            self._send(b"")
            time.sleep(_BEAT)

    def read(self) -> None:
        """Read what the parent sends, until its end."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._received.put(_load(_read_message(self._read)))
        self.parent_ended = True
        self.on_end()


def run_child() -> None:
    """Run a child's program."""
    read, write = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    channel = Channel(read, write)
    channel.start(channel.beat)
    try:
        target = pickle.loads(_read_message(read))
    except EOFError:  # the parent has ended
        return
    channel.start(channel.read)
    target(channel)


def _write(pipe: int, data: bytes) -> None:
    rest = memoryview(len(data).to_bytes(_LENGTH, "little") + data)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def _load(data: bytes) -> Any:
    """Return a value, or the error that shows that it cannot be read."""
    try:
        return pickle.loads(data)
    except Exception as error:
        return error


def _read_message(pipe: int, wait: Callable[[int], object] = lambda _: None) -> bytes:
    """Read the bytes of a message; call `wait` with the pipe before each read."""
    length = int.from_bytes(_read_bytes(pipe, _LENGTH, wait), "little")
    return _read_bytes(pipe, length, wait)


def _read_bytes(pipe: int, count: int, wait: Callable[[int], object]) -> bytes:
    parts = []
    while count:
        wait(pipe)
        part = os.read(pipe, min(count, _MOST_READ))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
