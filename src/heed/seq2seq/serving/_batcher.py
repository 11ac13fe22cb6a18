"""The queue of a server: joins waiting items into batches for one worker thread."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class QueueFullError(Exception):
    """The queue has no room for the submitted items."""


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Item]):
    kind: Hashable
    item: Item
    future: asyncio.Future[Any]


class Batcher(Generic[Item, Result]):
    """Works on waiting items of one kind together.

    It never waits to fill a batch: an item that finds the worker idle is a batch at once, and items that arrive while
    the worker is busy are the next batch. So a lone request is as quick as possible, and batches grow with the load.
    First come, first served: the oldest item sets the kind, and others of its kind join it.

    Args:
        work: called on the worker thread with a kind and some of its items; returns for each its result, or the
            exception to raise in whoever submitted it.
        batch_size: the most items of a kind in a batch.
        capacity: the most items that may wait.
        on_batch: called on the worker thread with the size of each batch, before work on it.

    Example:
        >>> async def ask():
        ...     batcher = Batcher(lambda kind, items: [kind * item for item in items], lambda kind: 2, capacity=4)
        ...     try:
        ...         return await asyncio.gather(*batcher.submit(10, [1, 2, 3]))
        ...     finally:
        ...         batcher.close()
        >>> asyncio.run(ask())
        [10, 20, 30]
    """

    def __init__(
        self,
        work: Callable[[Any, list[Item]], Sequence[Result | Exception]],
        batch_size: Callable[[Any], int],
        capacity: int,
        on_batch: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._work, self._on_batch = work, on_batch
        self._batch_size, self._capacity = batch_size, capacity
        self._waiting: deque[_Waiting[Item]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="heed-worker", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Return the number of waiting items, without those being worked on."""
        return len(self._waiting)

    def is_alive(self) -> bool:
        """Return whether the worker thread runs."""
        return self._thread.is_alive()

    def submit(self, kind: Hashable, items: Sequence[Item]) -> list[asyncio.Future[Result]]:
        """Put items in the queue, all or none; called on an event loop, which gets the results.

        An item whose future is cancelled while it waits is never worked on.
        """
        loop = asyncio.get_running_loop()
        added = [_Waiting(kind, item, loop.create_future()) for item in items]
        with self._changed:
            if self._closed or len(self._waiting) + len(added) > self._capacity:
                raise QueueFullError
            self._waiting.extend(added)
            self._changed.notify()
        return [one.future for one in added]

    def close(self, seconds: float | None = None) -> None:
        """End the thread, after work on the waiting items; wait for it at most so long."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        while batch := self._next():
            self._on_batch(len(batch))
            try:
                results = self._work(batch[0].kind, [one.item for one in batch])
            except Exception as error:  # the thread goes on for the others
                results = [error] * len(batch)
            self._deliver(batch, results)

    def _next(self) -> list[_Waiting[Item]]:
        """Return the oldest item and those of its kind, in order; empty once the batcher is closed and empty."""
        with self._changed:
            while True:
                while self._waiting and self._waiting[0].future.cancelled():
                    self._waiting.popleft()
                if self._waiting or self._closed:
                    break
                self._changed.wait()
            batch: list[_Waiting[Item]] = []
            others: deque[_Waiting[Item]] = deque()
            while self._waiting:
                one = self._waiting.popleft()
                if one.future.cancelled():
                    continue
                if not batch:
                    most = self._batch_size(one.kind)
                if not batch or (one.kind == batch[0].kind and len(batch) < most):
                    batch.append(one)
                else:
                    others.append(one)
            self._waiting = others
            return batch

    @staticmethod
    def _deliver(batch: Sequence[_Waiting[Item]], results: Sequence[Any]) -> None:
        """Deliver results on their event loops, with one call for each loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
        for one, result in zip(batch, results, strict=True):
            by_loop.setdefault(one.future.get_loop(), []).append((one.future, result))
        for loop, pairs in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve, pairs)
            except RuntimeError:  # the loop is closed: no request is waiting
                continue


def _resolve(pairs: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, result in pairs:
        if future.done():  # cancelled meanwhile
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
