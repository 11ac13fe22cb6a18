"""Worker processes on this machine that translate shards."""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Generator, Iterator

from heed.errors import TaskError
from heed.seq2seq.child_process import SILENCE, Channel, Child, ChildEndedError
from heed.seq2seq.corpus.answers import ATTEMPTS, make_portable, unwrap
from heed.seq2seq.corpus.inputs import Shard
from heed.seq2seq.corpus.job import ShardResult

# Makes the function that translates shards, in the worker; its argument is called with lines for the user.
MakeTranslator = Callable[[Callable[[str], object]], Callable[[Shard], ShardResult]]


def translate_in_processes(
    make: MakeTranslator,
    workers: int,
    note: Callable[[str], object],
    count: int,
    shards: Iterator[Shard],
    silence: float = SILENCE,
) -> Generator[ShardResult, None, None]:
    """Translate shards in worker processes; yield the results as they come.

    A worker takes the next shard when it has finished one. If a worker dies or hangs, another one takes its place and
    translates its shard; a shard or a start that fails three times in a row ends the translation.

    Args:
        make: makes the function that translates, in each worker; picklable.
        workers: processes, 1 or more; not more than shards are started.
        note: called with each different line of the workers once, and for each that dies.
        count: the number of shards.
        shards: the shards.
        silence: seconds without a sign of life after which a worker counts as hung, and is killed.

    Raises:
        TaskError: of a worker, or if it died three times in a row.
        OSError: if a process cannot be started.
    """
    pool = _Pool(make, note, shards, silence)
    try:
        pool.start(min(workers, count))
        for _ in range(count):
            yield pool.next_result()
    finally:
        pool.stop()


class _Pool:
    """A thread for each worker process, which sends it shards and waits for the results."""

    def __init__(
        self,
        make: MakeTranslator,
        note: Callable[[str], object],
        shards: Iterator[Shard],
        silence: float,
    ) -> None:
        self._start_process = functools.partial(
            Child, functools.partial(_work, make), silence=silence
        )
        self._note, self._shards = note, shards
        self._lock = threading.Lock()
        self._results: queue.SimpleQueue[ShardResult | BaseException] = queue.SimpleQueue()
        self._children: dict[int, Child] = {}
        self._threads: list[threading.Thread] = []
        self._notes: set[str] = set()
        self._stopping = False

    def start(self, workers: int) -> None:
        for number in range(workers):
            thread = threading.Thread(target=self._run, args=(number,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def next_result(self) -> ShardResult:
        result = self._results.get()
        if isinstance(result, BaseException):
            raise result
        return result

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
            while (shard := self._take()) is not None:
                self._results.put(self._translate(number, shard))
        except BaseException as error:
            self._results.put(error)

    def _take(self) -> Shard | None:
        with self._lock:
            return None if self._stopping else next(self._shards, None)

    def _translate(self, number: int, shard: Shard) -> ShardResult:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                child = self._children.get(number) or self._start_child(number)
                child.send(shard)
                return unwrap(child.receive())
            except ChildEndedError as end:
                why = str(end)
            with self._lock:
                if self._stopping:
                    raise TaskError("stopped")
                self._children.pop(number).close()
            if attempt < ATTEMPTS:
                self._note(f"worker {number} {why}: starting another one, which repeats its shard")
        raise TaskError(
            f"{shard.name}, from line {shard.first_line:,} on: worker {number} {why}, {ATTEMPTS} times in "
            "a row"
        )

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


def _work(make: MakeTranslator, channel: Channel) -> None:
    """Do the work of a process: load, and translate what it receives."""
    try:
        notes: list[str] = []
        translate = make(notes.append)
        channel.send(notes)
        while True:
            channel.send(translate(channel.receive()))
    except Exception as error:
        channel.send(make_portable(error))
