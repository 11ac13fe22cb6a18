"""One timer: sides take turns, in this process or in several."""

from __future__ import annotations

import gc
import math
import os
import signal
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from benchmarks import results
from benchmarks.results import Row

T = TypeVar("T")
# Of a trial, which has tiny sizes and no bars; see docs/measurements/method.md.
SMALLER = int(os.environ.get("HEED_BENCHMARK_SMALLER") or 0)
# Quick calls are repeated for so long in a round of `alternate`.
_ROUND_SECONDS = 0.02


def bar(value: float) -> float | None:
    """Return a bar, which a trial has not."""
    return None if SMALLER else value


def pause() -> None:
    """Let another process take its turn; the worker replaces it in runs of two heeds."""


def take_turns(sides: Sequence[Callable[[], T]], rounds: int) -> list[list[T]]:
    """Return what each side returns in each round.

    The order is reversed every other round, so that no side always follows the same neighbour.
    """
    samples: list[list[T]] = [[] for _ in sides]
    for number in range(rounds):
        pause()
        for place in range(len(sides))[:: 1 if number % 2 == 0 else -1]:
            samples[place].append(sides[place]())
    return samples


def alternate(
    *sides: Callable[[], Any], rounds: int, quartile: int = 1, budget: float = math.inf
) -> list[float]:
    """Return the seconds of a call of each side of this process: a quartile of rounds in turn, see `results.quartile`.

    Each side runs twice before. Of the rounds, at least 2, as many are done as fit the budget in seconds.
    """
    runs, whole = [], 0.0
    for side in sides:
        side()
        seconds = max(1e-9, seconds_of(side))
        calls = max(1, int(_ROUND_SECONDS / seconds))
        runs.append(lambda side=side, calls=calls: seconds_of(side, calls))
        whole += calls * seconds
    rounds = max(2, min(rounds, int(min(budget / whole, 1e9))))
    gc.collect()
    return [results.quartile(x, quartile) for x in take_turns(runs, rounds)]


def seconds_of(run: Callable[[], Any], calls: int = 1) -> float:
    """Return the mean seconds of so many calls in a row, without collections of garbage."""
    return timeit.timeit(run, timer=time.perf_counter, number=calls) / calls


def ratio(
    name: str,
    heed: Callable[[], Any],
    peer: Callable[[], Any],
    bar: float | None,
    rounds: int,
    *,
    note: str = "",
    **options: Any,
) -> Row:
    """Return a row of the peer's time / heed's time; `options` are those of `alternate`."""
    ours, theirs = alternate(heed, peer, rounds=rounds, **options)
    times = f"heed {_readable(ours)}, peer {_readable(theirs)}"
    return Row(name, theirs / ours, bar, note="; ".join(filter(None, [times, note])), seconds=ours)


def _readable(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


class _OutOfTimeError(BaseException):
    """A row takes too long. No library takes it for an error of its own."""


def attempt(
    what: str, rows: Iterator[Row | str], seconds: float | None = None
) -> Iterator[Row | str]:
    """Yield the rows; if one fails or takes more seconds, what it was and why instead of the rest.

    A limit of seconds ends what runs in Python, such as compilers, and needs the main thread.
    """
    while True:
        try:
            with nullcontext() if seconds is None else _limit(seconds):
                row = next(rows)
        except StopIteration:
            return
        except _OutOfTimeError:
            yield f"{what}: it took longer than {seconds:g} s"
            return
        except Exception as error:
            yield f"{what}: {type(error).__name__}: {error}"[:300]
            return
        yield row


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise _OutOfTimeError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
