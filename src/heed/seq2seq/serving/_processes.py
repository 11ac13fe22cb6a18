"""Several server processes that accept connections from one socket, each with its own model.

The socket belongs to all of them: when a process dies, connections that wait to be accepted go to the others.
"""

from __future__ import annotations

import dataclasses
import functools
import queue
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heed.errors import TaskError
from heed.processes.child import Channel, Child, ChildEndedError
from heed.processes.signals import receive_signals
from heed.seq2seq.serving._metrics_folder import (
    forget_process,
    make_metrics_folder,
    share_metrics,
)
from heed.seq2seq.serving._sockets import get_url

_MOST_ENDS = 10  # of each process in a row that stop the server while none answers
_FIRST_PAUSE = 1.0  # seconds before the second start in a row
_LONGEST_PAUSE = 60.0  # before later ones
_STEADY = 60.0  # seconds of answering after which an end is not one in a row
_KILL_AFTER = 5.0  # seconds beyond `drain` that a process may take to end

# The work of a process: its number, 0 or more; the descriptor of the socket; its channel, on which it sends None when
# it answers, an exception if it cannot, or a line for the user.
ServerProgram = Callable[[int, int, Channel], object]


def serve_in_processes(
    listener: socket.socket,
    count: int,
    program: ServerProgram,
    drain: float,
    on_start: Callable[[str], object],
    note: Callable[[str], object],
) -> None:
    """Run server processes until SIGINT, SIGTERM or SIGHUP; start another one for each that dies.

    A process whose starts fail is started again after pauses, which become longer, for as long as another one answers.

    Args:
        listener, count: a socket of `_sockets.bind`, and the number of processes.
        program: the work of a process; picklable.
        drain: seconds that a process takes at most to answer its last requests.
        on_start, note: called with the page's address when all processes answer, and with lines for the user.

    Raises:
        TaskError: if a process does not start at first, or each has ended ten times in a row and none answers.
        KeyboardInterrupt: after SIGINT.
    """
    with make_metrics_folder() as folder:
        if folder is None:
            note("no temporary folder can be made: /metrics tells of one process alone")
        server = _Processes(listener, program, folder, note)
        try:
            with receive_signals(lambda number: server.events.put((None, number))):
                received = server.run(count, lambda: on_start(get_url(listener)))
                listener.close()
                server.stop(drain + _KILL_AFTER)
        finally:
            server.kill()
    if received == signal.SIGINT:
        raise KeyboardInterrupt
    signal.raise_signal(received)  # ends as one process does


@dataclasses.dataclass
class _Slot:
    """The place of one process and of those that replace it."""

    child: Child | None = None  # None while it waits for its next start
    answers_since: float | None = None  # None if it does not answer
    ends: int = 0  # in a row
    problem: str = ""  # why it cannot answer, if it said so
    due: float = 0.0  # when it is started again


class _Processes:
    def __init__(
        self,
        listener: socket.socket,
        program: ServerProgram,
        folder: Path | None,
        note: Callable[[str], object],
    ) -> None:
        self._listener, self._program, self._folder, self._note = listener, program, folder, note
        # The number of a process with its message or its end, or None with a signal.
        self.events: queue.SimpleQueue[tuple[int | None, Any]] = queue.SimpleQueue()
        self._slots: list[_Slot] = []

    def run(self, count: int, on_start: Callable[[], object]) -> int:
        """Start processes, and keep them running until a signal; return its number."""
        self._slots = [_Slot() for _ in range(count)]
        for place in range(count):
            self._start(place)
        started = False
        while True:
            number, event = self._wait()
            if number is None:
                return int(event)
            slot = self._slots[number]
            if event is None:
                slot.answers_since = time.monotonic()
                if not started and all(one.answers_since is not None for one in self._slots):
                    started = True
                    on_start()
            elif isinstance(event, str):
                self._note(f"process {number}: {event}")
            elif isinstance(event, ChildEndedError):
                if not started:
                    raise TaskError(f"process {number} {event} while it started")
                self._plan_start(number, slot.problem or str(event))
            elif not started:  # also bugs
                raise event
            else:
                slot.problem = f"could not go on: {event}"

    def _wait(self) -> tuple[int | None, Any]:
        """Wait for the next event; start processes that are due meanwhile."""
        while True:
            now = time.monotonic()
            waiting = {i: slot.due for i, slot in enumerate(self._slots) if slot.child is None}
            for place in [i for i, due in waiting.items() if due <= now]:
                del waiting[place]
                try:
                    self._start(place)
                except OSError as error:  # no memory, no process number ...
                    self._plan_start(place, f"could not be started: {error.strerror or error}")
                    waiting[place] = self._slots[place].due
            try:
                left = max(0.0, min(waiting.values()) - now) if waiting else None
                return self.events.get(timeout=left)
            except queue.Empty:
                continue

    def _start(self, number: int) -> None:
        descriptor = self._listener.fileno()
        slot = self._slots[number]
        slot.problem = ""
        slot.child = Child(
            functools.partial(_serve, self._program, self._folder, number, descriptor),
            descriptors=[descriptor],
            on_value=lambda value: self.events.put((number, value)),
        )

    def _plan_start(self, number: int, end: str) -> None:
        """Plan another process, unless that does not help: at once for the first time, then after pauses."""
        slot, now = self._slots[number], time.monotonic()
        if slot.child is not None:
            slot.child.close()
            if self._folder is not None:
                forget_process(self._folder, number)
        steady = slot.answers_since is not None and now - slot.answers_since >= _STEADY
        slot.ends = 1 if steady else slot.ends + 1
        slot.child, slot.answers_since = None, None
        answering = any(one.answers_since is not None for one in self._slots)
        if not answering and min(one.ends for one in self._slots) >= _MOST_ENDS:
            raise TaskError(
                f"process {number} {end}, {slot.ends} times in a row, and no process answers: the server stops"
            )
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (slot.ends - 2)) if slot.ends > 1 else 0.0
        slot.due = now + pause
        when = f" in {pause:.0f} s" if pause else ""
        self._note(f"process {number} {end}: starting another one{when}")

    def stop(self, seconds: float) -> None:
        """Let all processes answer their last requests; a second signal ends them at once."""
        running = {i: one.child for i, one in enumerate(self._slots) if one.child is not None}
        for child in running.values():
            child.signal(signal.SIGTERM)
        end = time.monotonic() + seconds
        while running and (left := end - time.monotonic()) > 0:
            try:
                number, event = self.events.get(timeout=left)
            except queue.Empty:
                return
            if number is None:
                return
            if isinstance(event, ChildEndedError):
                running.pop(number, None)

    def kill(self) -> None:
        """End what still runs."""
        for slot in self._slots:
            if slot.child is not None:
                slot.child.close()


def _serve(
    program: ServerProgram, folder: Path | None, number: int, descriptor: int, channel: Channel
) -> None:
    """Run the program in a process, with metrics that all processes share where there is room for them."""
    # After a signal it ends here, where it can remove what its parent left.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    problem = None if folder is None else share_metrics(folder, number)
    if problem is not None:
        channel.send(f"{problem.strerror or problem}: /metrics leaves it out")
    try:
        program(number, descriptor, channel)
    finally:
        if channel.parent_ended and folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
