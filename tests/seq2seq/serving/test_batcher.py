"""The queue: what is joined, what is not, what is never lost."""

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.seq2seq.serving._batcher import Batcher, QueueFullError


class Worker:
    """Answers with the kind and the item, once it is let go; remembers its batches."""

    def __init__(self, held=True):
        self.batches, self.go = [], threading.Event()
        if not held:
            self.go.set()

    def __call__(self, kind, items):
        self.batches.append((kind, items))
        assert self.go.wait(60)
        return [(kind, item) for item in items]


def run(of, **options):
    """Run a coroutine function with a batcher, whose worker it gets too."""
    worker = Worker(options.pop("held", True))
    batcher = Batcher(worker, options.pop("size", lambda kind: 4), options.pop("room", 100))

    async def all_of_it():
        try:
            return await of(batcher, worker)
        finally:
            worker.go.set()
            await asyncio.get_running_loop().run_in_executor(None, batcher.close)

    return asyncio.run(asyncio.wait_for(all_of_it(), 60))


async def busy(batcher, worker):
    """Occupy the worker, so that what follows waits."""
    first = batcher.submit("first", [0])
    while not worker.batches:
        await asyncio.sleep(0.001)
    return first


def test_what_waits_is_joined_by_kind_in_order():
    async def of(batcher, worker):
        asked = await busy(batcher, worker)
        for kind, item in [("a", 1), ("b", 2), ("a", 3), ("a", 4), ("b", 5), ("a", 6), ("a", 7)]:
            asked += batcher.submit(kind, [item])
        assert len(batcher) == 7
        worker.go.set()
        await asyncio.gather(*asked)
        return worker.batches

    assert run(of)[1:] == [("a", [1, 3, 4, 6]), ("b", [2, 5]), ("a", [7])]


def test_a_lone_item_does_not_wait():
    async def of(batcher, worker):
        return await batcher.submit("a", [1])[0]

    assert run(of, held=False) == ("a", 1)


def test_beyond_the_room_nothing_is_taken():
    async def of(batcher, worker):
        first = await busy(batcher, worker)
        two = batcher.submit("a", [1, 2])
        with pytest.raises(QueueFullError):
            batcher.submit("a", [3, 4])
        assert len(batcher) == 2
        two += batcher.submit("a", [3])
        worker.go.set()
        return await asyncio.gather(*first, *two)

    assert run(of, room=3) == [("first", 0), ("a", 1), ("a", 2), ("a", 3)]


def test_abandoned_requests_are_not_decoded():
    async def of(batcher, worker):
        asked = await busy(batcher, worker)
        first, second, third, fourth, fifth = batcher.submit("a", [1, 2, 3, 4, 5])
        for future in (first, third, fifth):
            future.cancel()
        asked += [second, fourth]
        worker.go.set()
        await asyncio.gather(*asked)
        return worker.batches[1:]

    assert run(of) == [("a", [2, 4])]


def test_an_error_is_for_its_own_batch_and_the_worker_goes_on():
    def work(kind, items):
        if kind == "bad":
            raise ZeroDivisionError("no")
        return [ValueError("one") if item == 0 else item for item in items]

    async def of():
        batcher = Batcher(work, lambda kind: 4, 10)
        try:
            asked = batcher.submit("bad", [1]) + batcher.submit("good", [0, 5])
            return await asyncio.gather(*asked, return_exceptions=True)
        finally:
            batcher.close()

    bad, one, good = asyncio.run(of())
    assert isinstance(bad, ZeroDivisionError)
    assert isinstance(one, ValueError)
    assert good == 5


def test_closing_works_on_what_waits_and_takes_nothing_new():
    async def of(batcher, worker):
        asked = await busy(batcher, worker) + batcher.submit("a", [1])
        closing = asyncio.get_running_loop().run_in_executor(None, batcher.close)
        while not batcher._closed:
            await asyncio.sleep(0.001)
        with pytest.raises(QueueFullError):
            batcher.submit("a", [2])
        worker.go.set()
        await closing
        return await asyncio.gather(*asked)

    assert run(of) == [("first", 0), ("a", 1)]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(), max_size=5))),
    st.integers(1, 6),
)
def test_each_gets_its_own_answer(requests, size):
    async def of(batcher, worker):
        asked = [batcher.submit(kind, items) for kind, items in requests]
        found = [await asyncio.gather(*futures) for futures in asked]
        assert all(len(items) <= size for _, items in worker.batches)
        return found

    found = run(of, held=False, size=lambda kind: size, room=1000)
    assert found == [[(kind, item) for item in items] for kind, items in requests]
