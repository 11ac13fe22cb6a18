"""One side in its own process: obeys one JSON line at a time. `python -m benchmarks.worker MODULE`.

    {"do": "prepare", "case": {...}}    inputs made, graph built, run twice  -> {"ok": true}
    {"do": "round", "calls": 3}         seconds of a call, and see `probe`
                                        -> {"seconds": 0.021, "probe": 0.0011}
    {"do": "memory", "case": {...}, "warm_up": {...}}
                                        in MiB  -> {"base": 412.0, "peak": 655.1}

It ends with its standard input. Between lines it sleeps on it: the sides do not disturb each other.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import Run, prepare

_STATUS = Path("/proc/self/status")


def probe(size: int = 384) -> float:
    """Seconds for a fixed piece of arithmetic on one core.

    Beside a sample it tells whether the machine was disturbed: then it takes longer than usual.
    """
    matrix = np.ones((size, size), np.float32)
    start = time.perf_counter()
    matrix @ matrix
    return time.perf_counter() - start


def timed_round(run: Run, calls: int) -> dict[str, float]:
    """Mean seconds of a call over `calls` in a row, and the slower probe of before and after."""
    before = probe()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    seconds = (time.perf_counter() - start) / calls
    return {"seconds": seconds, "probe": max(before, probe())}


def memory(module: str, case: Case, warm_up: Case) -> dict[str, float]:
    """Resident memory before and at the peak of one call, in MiB.

    Libraries load and thread pools start with the small case, before the first figure. The inputs
    of the case are in both figures. Meant for a fresh process: memory that a process once had, it
    may use again unseen.
    """
    prepare(module, warm_up)()
    run = prepare(module, case)
    base = _resident()
    run()
    return {"base": base, "peak": _peak()}


def _resident() -> float:
    """MiB resident now; makes the peak start from here where the system can."""
    if not _STATUS.exists():
        return _peak()
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return _peak()  # the peak so far counts as the base: never too high a difference
    return _from_status("VmRSS")


def _peak() -> float:
    """MiB resident at most so far."""
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
    """Answers lines until the input ends."""
    module = sys.argv[1]
    # Answers go to the real standard output; whatever libraries print goes to standard error.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    run: Run | None = None
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        answer: dict[str, Any]
        try:
            if order["do"] == "prepare":
                run = None  # the previous case's inputs go first
                run = prepare(module, Case(**order["case"]))
                run()
                run()
                answer = {"ok": True}
            elif order["do"] == "memory":
                answer = memory(module, Case(**order["case"]), Case(**order["warm_up"]))
            elif run is None:
                answer = {"error": "no case is prepared"}
            else:
                answer = timed_round(run, order["calls"])
        except Exception as error:  # whatever a peer raises is its answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
