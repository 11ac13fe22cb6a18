"""Translates the shards of a corpus with actors on a Ray cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

from heed.processes.child import ChildEndedError
from heed.processes.pool import hand_out, make_portable
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
        kind = ray.remote(num_cpus=each)(_Work)
        start = functools.partial(_Actor, ray, kind, (job, each, make))
        yield from hand_out(start, workers, note, count, shards)


class _Work:
    """The actor: loads a model, and translates shards; an error is an answer, too."""

    def load(self, job: Job, threads: int, make: Callable[..., Any]) -> Any:
        """Load the model; return its notes."""
        notes: list[str] = []
        try:
            self._translate = make(job, threads, notes.append)
        except Exception as error:
            return make_portable(error)
        return notes

    def translate(self, shard: Shard) -> Any:
        """Return the result of a shard."""
        try:
            return self._translate(shard)
        except Exception as error:
            return make_portable(error)


class _Actor:
    """An actor in the place of a child process, see `hand_out`."""

    def __init__(self, ray: Any, kind: Any, load: tuple[Any, ...], on_value: Any) -> None:
        self._ray, self._on_value = ray, on_value
        self._handle = kind.remote()
        self._pass_on(self._handle.load.remote(*load))

    def send(self, shard: Shard) -> None:
        self._pass_on(self._handle.translate.remote(shard))

    def _pass_on(self, answer: Any) -> None:
        answer.future().add_done_callback(self._receive)

    def _receive(self, future: Any) -> None:
        try:
            value = future.result()
        except self._ray.exceptions.RayError as error:
            value = ChildEndedError("died", -1)
            value.__cause__ = Exception(" ".join(str(error).split()))
        except Exception as error:
            value = error
        self._on_value(value)

    def kill(self) -> None:
        self._ray.kill(self._handle)

    close = kill
