"""Runs one side, or one measurement, in a process of its own, by orders in JSON lines: `python -m benchmarks.worker`.

    {"do": "prepare", "target": "module:function", "options": {}, "case": {...}, "results": "file.npz"}
                              makes inputs and graph, runs it, writes the results  -> {"seconds": 0.021}
    {"do": "round", "calls": 3}
                              seconds per call, and of what is subtracted  -> {"seconds": 0.02, "base": 0.0}
    {"do": "memory", "target": ..., "options": {}, "case": {...}, "warm_up": {...}}
                              in MiB  -> {"base": 412.0, "peak": 655.1, "gradients": 48.0}
    {"do": "measure", "target": ..., "rounds": 9, "pauses": false}
    {"do": "go"}              runs to the next row  -> {"row": {...}}, {"problem": "..."} or {"end": true}
                              with pauses also to the next round  -> {"pause": true}

It ends with its standard input. Between orders it blocks on reading, so that it does not disturb other sides.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import re
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import turns
from benchmarks.cases import SIZES, Case
from benchmarks.peers import Prepared, threads
from benchmarks.results import Row

_STATUS = Path("/proc/self/status")
# Libraries' idle threads spin for some milliseconds, which must not disturb the next side.
SETTLE_SECONDS = 0.01
# After a first call as long as this, no second one is needed to warm up.
SLOW_SECONDS = 2.0


def time_round(prepared: Prepared, calls: int) -> dict[str, float]:
    """Return the mean seconds of `calls` calls in a row, and those of the base, 0 without one."""
    seconds = []
    for run in (prepared.run, prepared.base):
        if run is not None and calls > 1:
            run()  # the side before has filled the caches
        seconds.append(0.0 if run is None else turns.seconds_of(run, calls) * prepared.portion)
    time.sleep(SETTLE_SECONDS)
    return {"seconds": seconds[0], "base": seconds[1]}


def first_runs(prepared: Prepared, results: str) -> float:
    """Warm up, write the first results, and return the seconds of one call."""
    found: list[Any] = []
    seconds = turns.seconds_of(lambda: found.append(prepared.run()))
    np.savez(results, *prepared.arrays(found.pop()))
    if seconds < SLOW_SECONDS:
        prepared.run()
        seconds = turns.seconds_of(prepared.run)
    return seconds


def resident_memory() -> float:
    """Return the resident memory now, in MiB; resets the peak if the system allows it."""
    if not _STATUS.exists():
        return peak_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return peak_memory()  # with the peak so far as the base, the difference is never too high
    return _from_status("VmRSS")


def peak_memory() -> float:
    """Return the peak of the resident memory so far, in MiB."""
    if _STATUS.exists():
        return _from_status("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def _from_status(name: str, file: str | Path = _STATUS) -> float:
    text = Path(file).read_text(encoding="ascii")
    return int(re.search(rf"^{name}:\s*(\d+) kB", text, re.MULTILINE).group(1)) / 1024  # type: ignore[union-attr]


def memory_of(process: int) -> float:
    """Return the resident memory of another process, in MiB."""
    return _from_status("VmRSS", f"/proc/{process}/status")


def free_memory() -> float:
    """Return the memory that is free, in MiB; infinity if the system does not tell."""
    return _from_status("MemAvailable", "/proc/meminfo") if _STATUS.exists() else math.inf


def find(target: str) -> Any:
    """Return the function of "module:function", `prepare` by default."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name or "prepare")


class Worker:
    """Answers orders, a method each."""

    def __init__(self, answers: Any) -> None:
        self._answers = answers
        count = threads()
        if count and hasattr(os, "sched_setaffinity"):  # also limits libraries without a setting
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
        self._prepared: Any = None
        self._rows: Iterator[Row | str] = iter(())

    def answer(self, do: str, **order: Any) -> None:
        """Do as ordered; any error of a peer is its answer."""
        try:
            answer = getattr(self, f"_{do}")(**order)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        self._answers.write(json.dumps(answer) + "\n")

    def _prepare(
        self, target: str, options: dict[str, Any], case: dict[str, Any], results: str
    ) -> dict[str, Any]:
        self._prepared = None  # the previous case's inputs go first
        self._prepared = find(target)(Case(**case), **options)
        return {"seconds": first_runs(self._prepared, results)}

    def _round(self, calls: int) -> dict[str, Any]:
        return time_round(self._prepared, calls)

    def _memory(
        self, target: str, options: dict[str, Any], case: dict[str, Any], warm_up: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the resident memory before a call and at its peak, and the size of its gradients, in MiB.

        The small case loads libraries and starts thread pools before the first measurement. Both measurements include
        the inputs of the case. Needs a new process, because a process can reuse memory that it had before.
        """
        prepare = find(target)
        prepare(Case(**warm_up), **options).run()
        prepared = prepare(Case(**case), **options)
        base = resident_memory()
        results = prepared.run()
        peak = peak_memory()
        values = sum(array.size for array in prepared.arrays(results)[1:])
        size = SIZES[case.get("dtype", "float32")]
        return {"base": base, "peak": peak, "gradients": values * size / 2**20}

    def _measure(self, target: str, rounds: int, pauses: bool) -> dict[str, Any]:
        if pauses:
            turns.pause = self._pause
        self._rows = find(target)(rounds)
        return {"ok": True}

    def _go(self) -> dict[str, Any]:
        found = next(self._rows, None)
        if found is None:
            return {"end": True}
        return {"problem": found} if isinstance(found, str) else {"row": dataclasses.asdict(found)}

    def _pause(self) -> None:
        time.sleep(SETTLE_SECONDS)
        self._answers.write(json.dumps({"pause": True}) + "\n")
        if not sys.stdin.readline():  # the next "go"
            raise SystemExit


def main() -> None:
    """Answer orders until the input ends."""
    # Answers go to the real standard output, the output of libraries to standard error.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = Worker(answers)
    for line in iter(sys.stdin.readline, ""):
        worker.answer(**json.loads(line))


if __name__ == "__main__":
    main()
