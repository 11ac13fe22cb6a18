"""Worker processes on this machine that take items one by one, each replaced when it dies."""

from __future__ import annotations

import contextlib
import functools
import queue
import traceback
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from heed.errors import TaskError
from heed.processes.child import SILENCE, Channel, Child, ChildEndedError

ATTEMPTS = 3  # of an item or a start whose worker dies

# Makes the function that turns an item into a result, in the worker; its argument is called with lines for the user.
Make = Callable[[Callable[[str], object]], Callable[[Any], Any]]


def run_in_pool(
    make: Make,
    workers: int,
    note: Callable[[str], object],
    count: int,
    items: Iterator[Any],
    silence: float = SILENCE,
) -> Generator[Any, None, None]:
    """Turn items into results in worker processes; yield the results as they come.

    A worker takes the next item when it has finished one. If a worker dies or hangs, another one takes its place and
    its item; an item or a start that fails three times in a row ends the work.

    Args:
        make: makes the function that works, in each worker; picklable.
        workers: processes, 1 or more; not more than items are started.
        note: called with each different line of the workers once, and for each that dies.
        count, items: the items and their number; picklable; messages name an item by its text.
        silence: seconds without a sign of life after which a worker counts as hung, and is killed.

    Raises:
        TaskError: of a worker, or if it died three times in a row.
        OSError: if a process cannot be started.
    """
    start = functools.partial(Child, functools.partial(_work, make), silence=silence)
    return hand_out(start, workers, note, count, items)


def hand_out(
    start: Callable[..., Any],
    workers: int,
    note: Callable[[str], object],
    count: int,
    items: Iterator[Any],
) -> Generator[Any, None, None]:
    """Do as `run_in_pool` with what `start(on_value=...)` starts: children, or what has their methods."""
    pool = _Pool(start, note, items)
    try:
        for number in range(min(workers, count)):
            pool.start(_Worker(number, next(items)))
        for _ in range(count):
            yield pool.next_result()
    finally:
        pool.stop()


def make_portable(error: Exception) -> Exception:
    """Return the error as one that a process without TensorFlow can read."""
    if isinstance(error, TaskError):
        return TaskError(str(error))
    if isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":
        return MemoryError("a worker has not enough memory")
    if isinstance(error, OSError):
        if error.errno is None:  # its message alone
            return OSError(str(error))
        return OSError(error.errno, error.strerror, error.filename)
    if isinstance(error, ImportError):
        return ImportError(str(error), name=error.name)
    return RuntimeError("a worker failed:\n" + "".join(traceback.format_exception(error)))


def unwrap(answer: Any) -> Any:
    """Return the answer of a worker; raise it if it is an error."""
    if isinstance(answer, Exception):
        raise answer
    return answer


@dataclass
class _Worker:
    number: int
    item: Any
    child: Any = None  # see `hand_out`
    loaded: bool = False
    attempts: int = 0  # that have failed since the last result

    def send_item(self) -> None:
        """Send the process its item; of one that has ended, `next_result` hears."""
        with contextlib.suppress(ChildEndedError):
            self.child.send(self.item)


class _Pool:
    """The workers, and what they have sent: a worker with its answer or its end."""

    def __init__(
        self, start: Callable[..., Any], note: Callable[[str], object], items: Iterator[Any]
    ) -> None:
        self._start_process, self._note, self._items = start, note, items
        self._answers: queue.SimpleQueue[tuple[_Worker, Any]] = queue.SimpleQueue()
        self._running: dict[int, Any] = {}
        self._notes: set[str] = set()

    def start(self, worker: _Worker) -> None:
        worker.loaded = False
        worker.child = self._running[worker.number] = self._start_process(
            on_value=lambda value: self._answers.put((worker, value))
        )

    def next_result(self) -> Any:
        while True:
            worker, answer = self._answers.get()
            if isinstance(answer, ChildEndedError):
                self._replace(worker, answer)
                continue
            answer = unwrap(answer)
            if worker.loaded:
                worker.attempts, worker.item = 0, next(self._items, None)
                if worker.item is None:
                    worker.child.kill()  # others can use its processors
                else:
                    worker.send_item()
                return answer
            worker.loaded = True
            for one in answer:
                if one not in self._notes:
                    self._notes.add(one)
                    self._note(one)
            worker.send_item()

    def _replace(self, worker: _Worker, end: ChildEndedError) -> None:
        self._running.pop(worker.number).close()
        if worker.item is None:  # it had nothing to do
            return
        worker.attempts += 1
        if worker.attempts == ATTEMPTS:
            place = f"{worker.item}: worker {worker.number}"
            why = f": {end.__cause__}" if end.__cause__ else ""
            raise TaskError(f"{place} {end}, {ATTEMPTS} times in a row{why}")
        self._note(f"worker {worker.number} {end}: starting another one, which repeats its work")
        self.start(worker)

    def stop(self) -> None:
        """End all workers at once: they have nothing to lose."""
        for child in self._running.values():
            child.kill()
        for child in self._running.values():
            child.close()


def _work(make: Make, channel: Channel) -> None:
    """Do the work of a process: load, and finish the items that it receives."""
    try:
        notes: list[str] = []
        finish = make(notes.append)
        channel.send(notes)
        while True:
            channel.send(finish(unwrap(channel.receive())))
    except Exception as error:
        channel.send(make_portable(error))
