"""Several server processes that accept connections from one socket, each with its own model.

The socket belongs to all of them: when a process dies, connections that wait to be accepted go to the others.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import queue
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from heed.seq2seq.child_process import Channel, Child, ChildEndedError
from heed.seq2seq.errors import TaskError
from heed.seq2seq.serving.metrics import SHARED_FOLDER, forget_process
from heed.seq2seq.serving.sockets import get_url

_MOST_ENDS, _SPAN = 10, 600.0  # ends of processes within so many seconds that stop the server
_KILL_AFTER = 5.0  # seconds beyond `drain` that a process may take to end

# The work of a process: its number, 0 or more; the descriptor of the socket; its channel, on which it sends None when
# it answers, or an exception.
ServerProgram = Callable[[int, int, Channel], object]


def serve_in_processes(
    listener: socket.socket,
    count: int,
    program: ServerProgram,
    drain: float,
    on_start: Callable[[str], object],
    note: Callable[[str], object],
) -> None:
    """Runs server processes until SIGINT or SIGTERM; starts another one for each that dies.

    Args:
        listener: a socket of `sockets.bind`.
        count: processes, 1 or more.
        program: the work of a process; picklable.
        drain: seconds that a process takes at most to answer its last requests.
        on_start: called with the page's address when all processes answer.
        note: called with a line for each process that dies.

    Raises:
        TaskError: if a process does not start, or ten end within ten minutes.
        KeyboardInterrupt: after SIGINT.
    """
    with tempfile.TemporaryDirectory(prefix="heed-metrics-") as folder:
        server = _Processes(listener, program, folder, note)
        try:
            with _receive_signals(server.events):
                received = server.run(count, lambda: on_start(get_url(listener)))
                listener.close()
                server.stop(drain + _KILL_AFTER)
        finally:
            server.kill()
    if received == signal.SIGINT:
        raise KeyboardInterrupt
    signal.raise_signal(received)  # ends as one process does


class _Processes:
    """The processes of a server.

    Attributes:
        events: what has happened: (number of a process, its message or its end), or (None, a signal).
    """

    def __init__(
        self,
        listener: socket.socket,
        program: ServerProgram,
        folder: str,
        note: Callable[[str], object],
    ) -> None:
        self._listener, self._program, self._folder, self._note = listener, program, folder, note
        self.events: queue.SimpleQueue[tuple[int | None, Any]] = queue.SimpleQueue()
        self._children: dict[int, Child] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._ends: collections.deque[float] = collections.deque(maxlen=_MOST_ENDS)

    def run(self, count: int, on_start: Callable[[], object]) -> int:
        """Starts processes, and keeps them running until a signal, whose number it returns."""
        for each in range(count):
            self._start(each)
        ready: set[int] = set()
        started = False
        while True:
            number, event = self.events.get()
            if number is None:
                return int(event)
            if event is None:
                ready.add(number)
                if len(ready) == count and not started:
                    started = True
                    on_start()
            elif isinstance(event, ChildEndedError):
                self._replace(number, f"process {number} {event}", started)
            elif not started:  # also bugs
                raise event
            else:
                self._note(f"process {number}: {event}")

    def _start(self, number: int) -> None:
        descriptor = self._listener.fileno()
        child = Child(
            functools.partial(self._program, number, descriptor),
            {SHARED_FOLDER: self._folder},
            [descriptor],
        )
        self._children[number] = child
        thread = threading.Thread(target=self._listen, args=(number, child), daemon=True)
        self._threads[number] = thread
        thread.start()

    def _listen(self, number: int, child: Child) -> None:
        try:
            while True:
                self.events.put((number, child.receive()))
        except ChildEndedError as end:
            self.events.put((number, end))

    def _replace(self, number: int, end: str, started: bool) -> None:
        """Starts another process, unless that does not help."""
        child = self._children.pop(number)
        child.close()
        with contextlib.suppress(OSError):
            forget_process(child.pid, self._folder)
        if not started:
            raise TaskError(f"{end} while it started")
        now = time.monotonic()
        self._ends.append(now)
        if len(self._ends) == _MOST_ENDS and now - self._ends[0] < _SPAN:
            raise TaskError(
                f"{end}: {_MOST_ENDS} processes ended within {_SPAN / 60:.0f} minutes, so that the server stops"
            )
        self._note(f"{end}: starting another one")
        self._start(number)

    def stop(self, seconds: float) -> None:
        """Lets all processes answer their last requests; a second signal ends them at once."""
        for child in self._children.values():
            child.signal(signal.SIGTERM)
        end = time.monotonic() + seconds
        running = set(self._children)
        while running and (left := end - time.monotonic()) > 0:
            try:
                number, event = self.events.get(timeout=left)
            except queue.Empty:
                return
            if number is None:
                return
            if isinstance(event, ChildEndedError):
                running.discard(number)

    def kill(self) -> None:
        """Ends what still runs."""
        for number, child in self._children.items():
            child.kill()
            self._threads[number].join()
            child.close()


@contextlib.contextmanager
def _receive_signals(events: queue.SimpleQueue[tuple[int | None, Any]]) -> Iterator[None]:
    """Puts SIGINT and SIGTERM among the events, instead of raising them."""

    def receive(number: int, _: FrameType | None) -> None:
        events.put((None, number))

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
