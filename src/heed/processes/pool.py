"""Worker processes on this machine that take items one by one, each replaced when it dies."""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

from heed.errors import TaskError
from heed.processes.answers import ATTEMPTS, make_portable, unwrap
from heed.processes.child import SILENCE, Channel, Child, ChildEndedError

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
        count: the number of items.
        items: picklable; messages name an item by its text.
        silence: seconds without a sign of life after which a worker counts as hung, and is killed.

    Raises:
        TaskError: of a worker, or if it died three times in a row.
        OSError: if a process cannot be started.
    """
    pool = _Pool(make, note, items, silence)
    try:
        pool.start(min(workers, count))
        for _ in range(count):
            yield pool.next_result()
    finally:
        pool.stop()


class _Pool:
    """A thread for each worker process, which sends it items and waits for the results."""

    def __init__(
        self, make: Make, note: Callable[[str], object], items: Iterator[Any], silence: float
    ) -> None:
        self._start_process = functools.partial(
            Child, functools.partial(_work, make), silence=silence
        )
        self._note, self._items = note, items
        self._lock = threading.Lock()
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._children: dict[int, Child] = {}
        self._threads: list[threading.Thread] = []
        self._notes: set[str] = set()
        self._stopping = False

    def start(self, workers: int) -> None:
        for number in range(workers):
            thread = threading.Thread(target=self._run, args=(number,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def next_result(self) -> Any:
        return unwrap(self._results.get())

    def stop(self) -> None:
        """End all workers at once: they have nothing to lose."""
        with self._lock:
            self._stopping = True
            children = list(self._children.values())
        for child in children:
            child.kill()
        for thread in self._threads:
            thread.join()
        for child in self._children.values():
            child.close()

    def _run(self, number: int) -> None:
        try:
            while (item := self._take()) is not None:
                self._results.put(self._finish(number, item))
        except BaseException as error:
            self._results.put(error)

    def _take(self) -> Any:
        with self._lock:
            return None if self._stopping else next(self._items, None)

    def _finish(self, number: int, item: Any) -> Any:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                child = self._children.get(number) or self._start_child(number)
                child.send(item)
                return unwrap(child.receive())
            except ChildEndedError as end:
                why = str(end)
            with self._lock:
                if self._stopping:
                    raise TaskError("stopped")
                self._children.pop(number).close()
            if attempt < ATTEMPTS:
                self._note(f"worker {number} {why}: starting another one, which repeats its work")
        raise TaskError(f"{item}: worker {number} {why}, {ATTEMPTS} times in a row")

    def _start_child(self, number: int) -> Child:
        with self._lock:
            if self._stopping:
                raise TaskError("stopped")
            child = self._children[number] = self._start_process()
        notes = unwrap(child.receive())
        with self._lock:
            new = [one for one in notes if one not in self._notes]
            self._notes.update(new)
        for one in new:
            self._note(one)
        return child


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
