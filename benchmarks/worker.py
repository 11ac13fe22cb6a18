"""Runs one side in its own process, by orders in JSON lines: `python -m benchmarks.worker MODULE`.

    {"do": "prepare", "case": {...}, "results": "file.npz"}
                              makes inputs and graph, runs it, writes the results  -> {"seconds": 0.021}
    {"do": "round", "calls": 3}
                              seconds per call, and of the `Probe`  -> {"seconds": 0.02, "probe": 0.0011}
    {"do": "memory", "case": {...}, "warm_up": {...}}
                              in MiB  -> {"base": 412.0, "peak": 655.1, "gradients": 48.0}

It ends with its standard input. Between orders it blocks on reading, so that it does not disturb other sides.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import SIZES, Case
from benchmarks.peers import Prepared, prepare, threads

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
        start = time.perf_counter()
        list(self._pool.map(self._work, self._arrays, self._results))
        return time.perf_counter() - start

    @staticmethod
    def _work(array: np.ndarray, result: np.ndarray) -> None:
        for _ in range(80):
            np.exp(array, out=result)


def time_round(prepared: Prepared, calls: int, probe: Probe) -> dict[str, float]:
    """Return the mean seconds of `calls` calls in a row, and the slower of the probes before and after."""
    before = probe.seconds()
    seconds = _mean(prepared.run, calls)
    if prepared.base is not None:
        seconds -= _mean(prepared.base, calls)
    time.sleep(SETTLE_SECONDS)
    return {"seconds": seconds * prepared.portion, "probe": max(before, probe.seconds())}


def _mean(run: Callable[[], Any], calls: int) -> float:
    if calls > 1:
        run()  # the side before has filled the caches
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def first_runs(prepared: Prepared, results: str | None) -> float:
    """Warms up, writes the first results, and returns the seconds of one call."""
    start = time.perf_counter()
    first = prepared.run()
    seconds = time.perf_counter() - start
    if results is not None:
        np.savez(results, *prepared.arrays(first))
    del first
    if seconds < SLOW_SECONDS:
        prepared.run()
        start = time.perf_counter()
        prepared.run()
        seconds = time.perf_counter() - start
    return seconds


def memory(module: str, case: Case, warm_up: Case) -> dict[str, float]:
    """Return the resident memory before a call and at its peak, and the size of its gradients, in MiB.

    The small case loads libraries and starts thread pools before the first measurement. Both measurements include the
    inputs of the case. Needs a new process, because a process can reuse memory that it had before.
    """
    prepare(module, warm_up).run()
    prepared = prepare(module, case)
    base = resident_memory()
    results = prepared.run()
    peak = peak_memory()
    values = sum(array.size for array in prepared.arrays(results)[1:])
    return {"base": base, "peak": peak, "gradients": values * SIZES[case.dtype] / 2**20}


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


def _from_status(name: str) -> float:
    found = re.search(rf"^{name}:\s*(\d+) kB", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"no {name} in {_STATUS}")
    return int(found.group(1)) / 1024


def main() -> None:
    """Answers orders until the input ends."""
    module = sys.argv[1]
    # Answers go to the real standard output, the output of libraries to standard error.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    count = threads() or os.cpu_count() or 1
    if hasattr(os, "sched_setaffinity"):  # also limits libraries without a setting
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    probe = Probe(count)
    prepared: Prepared | None = None
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        answer: dict[str, Any]
        try:
            if order["do"] == "load":
                importlib.import_module(module)
                answer = {"ok": True}
            elif order["do"] == "prepare":
                prepared = None  # the previous case's inputs go first
                prepared = prepare(module, Case(**order["case"]))
                answer = {"seconds": first_runs(prepared, order.get("results"))}
            elif order["do"] == "memory":
                answer = memory(module, Case(**order["case"]), Case(**order["warm_up"]))
            elif prepared is None:
                answer = {"error": "no case is prepared"}
            else:
                answer = time_round(prepared, order["calls"], probe)
        except Exception as error:  # any error of a peer is its answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
