"""Worker processes, and what they measure: the times and the memory of a case's sides, and rows of other kinds."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import THREADS, Peer
from benchmarks.results import Result, Row, read_row
from benchmarks.suites import Measurement
from benchmarks.turns import take_turns

ROOT = Path(__file__).parents[1]
# A round is as many calls as fit, at least one: long enough for the clock, short enough that a burst of other work
# on the machine disturbs few rounds.
ROUND_SECONDS = 0.03
# Slow cases stop after this time for each side, but not before the least number of rounds.
CASE_SECONDS = 10.0
LEAST_ROUNDS = 3
# The largest difference of a side's result from heed's, relative to the largest value: a wrong mask or scale is far
# above, another order of summation far below.
TOLERANCE = {"float32": 1e-4, "bfloat16": 4e-2}


class UnavailableError(Exception):
    """A side or a measurement cannot run: its package is missing, or it fails."""


class Machine(NamedTuple):
    """What all processes of a run share.

    Args:
        threads: of each side.
        limits: environment variables that hold every side to an instruction set.
    """

    threads: int = 2
    limits: Mapping[str, str] = {}

    def start(self, peer: Peer) -> Process:
        """Start a side's process, on the CPU and on as many cores as threads."""
        count = str(self.threads)
        fixed = {
            "KERAS_BACKEND": "tensorflow",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",  # CPU against CPU
            "JAX_PLATFORMS": "cpu",
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", THREADS), count),
        }
        process = Process({**self.limits, **fixed, **peer.environment}, peer.python)
        process.send(do="load", target=peer.target)
        return process

    def start_measurement(self, measurement: Measurement, python: str | None = None) -> Process:
        """Start the process of a measurement, on whatever device its framework takes."""
        names = ("OMP_NUM_THREADS", "NPROC", "TF_NUM_INTRAOP_THREADS")
        fixed = {
            "KERAS_BACKEND": measurement.backend,
            # JAX would take three quarters of a GPU's memory, of which PyTorch's processes need some.
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }
        return Process({**self.limits, **fixed, **dict.fromkeys(names, str(self.threads))}, python)


class Process:
    """A worker, which answers one order after another.

    Args:
        environment: environment variables beside those of this process.
        python: its interpreter; None for this one.
    """

    def __init__(self, environment: Mapping[str, str], python: str | None = None) -> None:
        variables = {**os.environ, **environment}
        if python is not None:
            variables.pop("PYTHONPATH", None)  # the heed of this process is not that of another
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [python or sys.executable, "-m", "benchmarks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=variables,
            cwd=ROOT,
        )
        self._unread = 0

    @property
    def is_alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def send(self, **order: Any) -> None:
        """Send an order and wait for nothing: sides load their libraries, which takes seconds, at the same time."""
        if self._process.stdin is None:
            raise RuntimeError("the process has no pipes")
        # If the process has ended, reading its answer will tell.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        self._unread += 1

    def ask(self, **order: Any) -> dict[str, Any]:
        """Send an order and wait for its answer.

        Raises:
            UnavailableError: if the process has ended or reports an error, to this order or one before.
        """
        self.send(**order)
        answer: dict[str, Any] = {}
        while self._unread:
            self._unread -= 1
            answer = self._receive()
        return answer

    def _receive(self) -> dict[str, Any]:
        if self._process.stdout is None:
            raise RuntimeError("the process has no pipes")
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._errors.seek(0)
            last = (self._errors.read().strip().splitlines() or [""])[-1][:300]
            raise UnavailableError(f"its process ended with status {status}. {last}".strip())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise UnavailableError(answer["error"])
        return answer

    def kill(self) -> None:
        """End the process whatever it does."""
        self._process.kill()

    def close(self) -> None:
        """Let the process end."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


class Sides:
    """The processes of a run, started on first use. A context manager, which ends them.

    Args:
        start: starts a side's process.
    """

    def __init__(self, start: Callable[[Peer], Process]) -> None:
        self._start = start
        self._started: dict[tuple[Any, ...], Process] = {}

    def __enter__(self) -> Sides:
        return self

    def __exit__(self, *_: object) -> None:
        for side in self._started.values():
            side.close()

    def of(self, peer: Peer) -> Process:
        """Return the peer's process; a new one if it has ended."""
        options = (*peer.options.items(), *peer.environment.items())
        key = (peer.target, peer.python, *options)
        side = self._started.get(key)
        if side is None or not side.is_alive:
            if side is not None:
                side.close()
            side = self._started[key] = self._start(peer)
        return side


def time_case(
    case: Case, peers: dict[str, Peer], rounds: int, processes: Sides
) -> dict[str, Result]:
    """Time all sides on one case, alternating their processes round by round.

    Sides whose first results differ from heed's are not timed.

    Args:
        case: the case.
        peers: the sides by name; the others are compared with the first that is heed.
        rounds: the number of samples of each side; fewer if a call takes seconds.
        processes: the processes of the sides.

    Returns:
        A result for each side.
    """
    results = {name: Result(problem=too_large(peer, case)) for name, peer in peers.items()}
    peers = {name: peer for name, peer in peers.items() if results[name].problem is None}
    sides = {name: processes.of(peer) for name, peer in peers.items()}
    seconds = _prepare(case, peers, sides, results)
    slowest = max([ROUND_SECONDS, *seconds.values()])
    rounds = min(rounds, max(LEAST_ROUNDS, int(CASE_SECONDS / slowest)))

    def sample(name: str) -> Callable[[], None]:
        calls, result = max(1, int(ROUND_SECONDS / seconds[name])), results[name]

        def run() -> None:
            if result.problem is None:
                try:
                    answer = sides[name].ask(do="round", calls=calls)
                except UnavailableError as error:
                    result.problem = str(error)
                    return
                result.samples.append(answer["seconds"])
                result.probes.append(answer["probe"])

        return run

    take_turns([sample(name) for name in seconds], rounds)
    return results


def _prepare(
    case: Case, peers: dict[str, Peer], sides: dict[str, Process], results: dict[str, Result]
) -> dict[str, float]:
    """Warm all sides up and compare their results with heed's.

    Returns:
        The seconds of a call for each side that can be timed.
    """
    seconds = {}
    own = next(name for name, peer in peers.items() if peer.is_heed)
    with tempfile.TemporaryDirectory(prefix="heed-benchmark-") as folder:
        file = Path(folder) / "results.npz"

        def run(name: str, case: Case) -> tuple[float, list[np.ndarray]]:
            order = {"target": peers[name].target, "options": peers[name].options}
            answer = sides[name].ask(do="prepare", **order, case=case.to_dict(), results=str(file))
            with np.load(file) as arrays:
                return answer["seconds"], [arrays[key] for key in arrays.files]

        expected = {}
        try:
            # The case itself comes last, because the process is timed on the last one.
            for other in {peer.computes(case) for peer in peers.values()} - {case}:
                _, expected[other] = run(own, other)
            seconds[own], expected[case] = run(own, case)
        except UnavailableError as error:
            results[own].problem = str(error)
        for name, peer in peers.items():
            if name == own:
                continue
            other = peer.computes(case)
            results[name].instead = other.name if other != case else None
            if other not in expected:
                results[name].problem = f"there is no result of {own} to compare with"
                continue
            try:
                once, arrays = run(name, other)
            except UnavailableError as error:
                results[name].problem = str(error)
                continue
            if not peer.is_limit:
                results[name].problem = describe_difference(arrays, expected[other], case.dtype)
            if results[name].problem is None:
                seconds[name] = once
    return seconds


def describe_difference(
    actual: list[np.ndarray], expected: list[np.ndarray], dtype: str
) -> str | None:
    """Describe how results differ from the expected ones; None if only by rounding.

    Args:
        actual: output and gradients.
        expected: heed's output and gradients.
        dtype: the dtype of the computation.
    """
    shapes, wanted = ([array.shape for array in arrays] for arrays in (actual, expected))
    if shapes != wanted:
        return f"its results have shapes {shapes}, heed's {wanted}"
    # Gradients are compared relative to the largest of all: that of a key's bias is 0 but for rounding.
    for name, first, last in (("output", 0, 1), ("gradients", 1, len(expected))):
        pairs = list(zip(actual[first:last], expected[first:last], strict=True))
        error = _largest(one - other for one, other in pairs)
        size = _largest(other for _, other in pairs)
        if not error <= TOLERANCE[dtype] * size:  # also true for NaN
            return f"its {name} differs from heed's by {error:.3g}, where the largest is {size:.3g}"
    return None


def _largest(arrays: Iterable[np.ndarray]) -> float:
    return float(np.max([np.max(np.abs(array), initial=0.0) for array in arrays], initial=0.0))


def measure_memory(
    case: Case, peers: dict[str, Peer], start: Callable[[Peer], Process]
) -> dict[str, Result]:
    """Measure the peak memory that each side adds for one case, each in a new process."""
    results = {}
    # A small case of the same kind loads the libraries first.
    keys = None if case.keys is None else 64
    warm_up = dataclasses.replace(case, batch=1, heads=1, key_heads=None, length=64, keys=keys)
    for name, peer in peers.items():
        results[name] = result = Result(problem=too_large(peer, case))
        if result.problem is not None:
            continue
        side = start(peer)
        try:
            order = {"target": peer.target, "options": peer.options, "case": case.to_dict()}
            answer = side.ask(do="memory", **order, warm_up=warm_up.to_dict())
            result.added_mib = answer["peak"] - answer["base"] - answer["gradients"]
        except UnavailableError as error:
            result.problem = str(error)
        finally:
            side.close()
    return results


def too_large(peer: Peer, case: Case) -> str | None:
    """Return why a side that builds the scores cannot run: it would need more memory than is free."""
    needed = case.score_tensors * case.score_bytes
    free = _free_bytes()
    if not peer.builds_scores or free is None or needed < free:
        return None
    return f"needs about {needed / 2**30:.0f} GiB of memory, {free / 2**30:.0f} GiB are free"


def _free_bytes() -> int | None:
    """Return the memory that is available; None if the system does not tell."""
    file = Path("/proc/meminfo")
    if not file.exists():
        return None
    found = re.search(r"^MemAvailable:\s*(\d+) kB", file.read_text(), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else None


def measure_rows(
    target: str, rounds: int, processes: Sequence[Process], seconds: float | None = None
) -> Iterator[Row | str]:
    """Yield the rows and problems of a measurement.

    Args:
        target: "module:function" in `benchmarks`.
        rounds: the number of samples of each side.
        processes: one, or two with different heeds: a row of the first then has the second's figures too. The two take
            turns at each round, and only one of them runs at a time.
        seconds: ends the processes after so long; None for never.

    Raises:
        UnavailableError: if the first process fails or takes too long.
    """
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        for process in processes:
            process.kill()

    limit = threading.Timer(seconds or threading.TIMEOUT_MAX, expire)
    limit.daemon = True
    limit.start()
    try:
        order = {"do": "measure", "target": f"benchmarks.{target}", "rounds": rounds}
        for process in processes:
            process.send(**order, pauses=len(processes) > 1)
        yield from _join(*map(_steps, processes))
    except UnavailableError as error:
        if not expired.is_set():
            raise
        raise UnavailableError(f"it took longer than {seconds:g} s") from error
    finally:
        limit.cancel()


_END = object()


def _steps(process: Process) -> Iterator[Row | str | None]:
    """Yield each row and each problem, and None for each pause."""
    while "end" not in (answer := process.ask(do="go")):
        yield read_row(answer["row"]) if "row" in answer else answer.get("problem")


def _join(own: Iterator[Any], *others: Iterator[Any]) -> Iterator[Row | str]:
    """Yield what the first heed finds, with the other's figures of the same rows."""
    other = next(iter(others), iter(()))
    before: dict[str, Row] = {}
    found: Any = None
    while found is not _END:
        found = theirs = None
        while found is None or theirs is None:
            found = next(own, _END) if found is None else found
            try:
                theirs = next(other, _END) if theirs is None else theirs
            except UnavailableError as error:
                theirs = str(error)
        if isinstance(theirs, Row):
            before[theirs.name] = theirs
        elif isinstance(theirs, str):
            yield f"the other heed: {theirs}"
        if isinstance(found, Row) and found.name in before:
            known = before[found.name]
            found = dataclasses.replace(found, before=(known.value, known.seconds))
        if found is not _END:
            yield found
