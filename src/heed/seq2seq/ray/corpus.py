"""Translates the shards of a corpus with actors on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

from heed.errors import TaskError
from heed.processes.pool import ATTEMPTS, make_portable, unwrap
from heed.ray_connection import check_processors, connect, count_processors
from heed.seq2seq.corpus.inputs import Shard
from heed.seq2seq.corpus.job import Job, ShardResult, ShardTranslator


def translate_on_ray(
    job: Job,
    workers: int,
    threads: int | None,
    note: Callable[[str], object],
    count: int,
    shards: Iterator[Shard],
    make: Callable[..., Callable[[Shard], ShardResult]] = ShardTranslator,
) -> Generator[ShardResult, None, None]:
    """Translate shards with actors; yield the results as they come.

    The texts travel to the actors and the translations back: only the run must be on every node.

    Args:
        job: the run and the settings.
        workers: actors, 1 or more; not more than shards are started.
        threads: those of all actors together; None: the processors of the cluster.
        note: called with each different line of the actors once, and for each that dies.
        count: the number of shards.
        shards: the shards.
        make: makes the function that translates, from the job, its threads and a function that takes notes.

    Raises:
        TaskError: of an actor, or if it died three times in a row.
        RayError: without Ray, its cluster, or enough processors.
    """
    with connect() as ray:
        each = max(1, (count_processors(ray) if threads is None else threads) // workers)
        workers = min(workers, count)
        check_processors(ray, workers, each)
        # Actors have working folders of their own.
        job = replace(job, run=job.run.resolve(), ensemble=tuple(x.resolve() for x in job.ensemble))
        actors = _Actors(ray, job, each, note, make)
        try:
            yield from actors.translate(workers, shards)
        finally:
            actors.stop()


class _Work:
    """The actor: loads a model, and translates shards."""

    def load(self, job: Job, threads: int, make: Callable[..., Any]) -> Any:
        """Load the model; return its notes, or an error."""
        notes: list[str] = []
        try:
            self._translate = make(job, threads, notes.append)
        except Exception as error:
            return make_portable(error)
        return notes

    def translate(self, shard: Shard) -> Any:
        """Translate a shard; return the result, or an error."""
        try:
            return self._translate(shard)
        except Exception as error:
            return make_portable(error)


@dataclass
class _Actor:
    handle: Any
    number: int
    shard: Shard | None = None
    loaded: bool = False
    attempts: int = 0  # that have failed since the last result


class _Actors:
    def __init__(
        self,
        ray: Any,
        job: Job,
        threads: int,
        note: Callable[[str], object],
        make: Callable[..., Any],
    ) -> None:
        self._ray, self._note = ray, note
        self._load = (job, threads, make)
        self._type = ray.remote(num_cpus=threads)(_Work)
        self._running: dict[Any, _Actor] = {}  # by the reference of the answer that each works on
        self._notes: set[str] = set()

    def translate(self, workers: int, shards: Iterator[Shard]) -> Iterator[ShardResult]:
        for number in range(workers):
            self._start(_Actor(None, number, next(shards, None)))
        while self._running:
            (reference,), _ = self._ray.wait(list(self._running), num_returns=1)
            actor = self._running.pop(reference)
            try:
                answer = unwrap(self._ray.get(reference))
            except self._ray.exceptions.RayError as error:
                self._replace(actor, error)
                continue
            if actor.loaded:
                actor.attempts = 0
                yield answer
                actor.shard = next(shards, None)
            else:
                actor.loaded = True
                self._show(answer)
            if actor.shard is None:
                self._ray.kill(actor.handle)
            else:
                self._running[actor.handle.translate.remote(actor.shard)] = actor

    def _start(self, actor: _Actor) -> None:
        actor.handle, actor.loaded = self._type.remote(), False
        self._running[actor.handle.load.remote(*self._load)] = actor

    def _replace(self, actor: _Actor, error: Exception) -> None:
        actor.attempts += 1
        name = f"worker {actor.number} died"
        if actor.attempts == ATTEMPTS:
            place = f"{actor.shard}: " if actor.shard else ""
            reason = " ".join(str(error).split())
            raise TaskError(f"{place}{name}, {ATTEMPTS} times in a row: {reason}")
        self._note(f"{name}: starting another one, which repeats its work")
        self._start(actor)

    def _show(self, notes: list[str]) -> None:
        for one in notes:
            if one not in self._notes:
                self._notes.add(one)
                self._note(one)

    def stop(self) -> None:
        for actor in self._running.values():
            self._ray.kill(actor.handle)
