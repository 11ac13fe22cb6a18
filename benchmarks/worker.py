"""Runs one side, or one measurement, in a process of its own, by orders in JSON lines: `python -m benchmarks.worker`.

    {"do": "load", "target": "module:function"}
    {"do": "prepare", "target": ..., "options": {}, "case": {...}, "results": "file.npz"}
                              makes inputs and graph, runs it, writes the results  -> {"seconds": 0.021}
    {"do": "round", "calls": 3}
                              seconds per call, and of the `Probe`  -> {"seconds": 0.02, "probe": 0.0011}
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
import os
import re
import resource
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import turns
from benchmarks.cases import SIZES, Case
from benchmarks.peers import Prepared, threads
from benchmarks.results import Row

_STATUS = Path("/proc/self/status")
# Libraries' idle threads spin for some milliseconds, which must disturb neither the probe nor the next side.
SETTLE_SECONDS = 0.01
# After a first call as long as this, no second one is needed to warm up.
SLOW_SECONDS = 2.0


class Probe:
    """A fixed computation on as many cores as a side uses.

    It takes longer than usual while other work disturbs the machine.
    """

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count)
        # Small enough for a core's own caches. NumPy releases the GIL.
        self._arrays = [np.linspace(-1, 1, 2**15, dtype=np.float32) for _ in range(count)]
        self._results = [np.empty_like(array) for array in self._arrays]
        self.seconds()

    def seconds(self) -> float:
        """Return the seconds until the last core is done, about a millisecond."""
        each = (self._arrays, self._results)
        return turns.seconds_of(lambda: list(self._pool.map(self._work, *each)), 1)

    @staticmethod
    def _work(array: np.ndarray, result: np.ndarray) -> None:
        for _ in range(80):
            np.exp(array, out=result)


def time_round(prepared: Prepared, calls: int, probe: Probe) -> dict[str, float]:
    """Return the mean seconds of `calls` calls in a row, and the slower of the probes before and after."""
    before = probe.seconds()
    seconds = 0.0
    for run, sign in ((prepared.run, 1), (prepared.base, -1)):
        if run is not None:
            if calls > 1:
                run()  # the side before has filled the caches
            seconds += sign * turns.seconds_of(run, calls)
    time.sleep(SETTLE_SECONDS)
    return {"seconds": seconds * prepared.portion, "probe": max(before, probe.seconds())}


def first_runs(prepared: Prepared, results: str | None) -> float:
    """Warm up, write the first results, and return the seconds of one call."""
    found: list[Any] = []
    seconds = turns.seconds_of(lambda: found.append(prepared.run()), 1)
    if results is not None:
        np.savez(results, *prepared.arrays(found[0]))
    found.clear()
    if seconds < SLOW_SECONDS:
        prepared.run()
        seconds = turns.seconds_of(prepared.run, 1)
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


def _from_status(name: str, process: int | str = "self") -> float:
    text = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    found = re.search(rf"^{name}:\s*(\d+) kB", text, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"no {name} of process {process}")
    return int(found.group(1)) / 1024


def memory_of(process: int) -> float:
    """Return the resident memory of another process, in MiB."""
    return _from_status("VmRSS", process)


def find(target: str) -> Any:
    """Return the function of "module:function", `prepare` by default."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name or "prepare")


class Worker:
    """Answers orders, a method each.

    Args:
        answers: where answers go.
    """

    def __init__(self, answers: Any) -> None:
        self._answers = answers
        count = threads() or os.cpu_count() or 1
        if threads() and hasattr(
            os, "sched_setaffinity"
        ):  # also limits libraries without a setting
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
        self._probe: Probe | None = None
        self._count = count
        self._prepared: Prepared | None = None
        self._rows: Iterator[Row | str] = iter(())

    def answer(self, do: str, **order: Any) -> None:
        """Do as ordered; any error of a peer is its answer."""
        try:
            answer = getattr(self, f"_{do}")(**order)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        self._answers.write(json.dumps(answer) + "\n")

    def _load(self, target: str) -> dict[str, Any]:
        importlib.import_module(target.partition(":")[0])
        return {"ok": True}

    def _prepare(
        self, target: str, options: dict[str, Any], case: dict[str, Any], results: str | None = None
    ) -> dict[str, Any]:
        self._prepared = None  # the previous case's inputs go first
        self._prepared = find(target)(Case(**case), **options)
        return {"seconds": first_runs(self._prepared, results)}

    def _round(self, calls: int) -> dict[str, Any]:
        if self._prepared is None:
            return {"error": "no case is prepared"}
        self._probe = self._probe or Probe(self._count)
        return time_round(self._prepared, calls, self._probe)

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
