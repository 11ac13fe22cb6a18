"""Measures the sides against each other, each in its own process, alternating in many short rounds."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import THREADS, Peer
from benchmarks.results import Result

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
    """The side cannot run: its package is missing, or it fails on the case."""


class Side:
    """A peer's process, which computes one case after another.

    Args:
        peer: the peer.
        threads: the number of its threads.
        limits: environment variables that hold every peer to an instruction set.
    """

    def __init__(
        self, peer: Peer, threads: int = 2, limits: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.peer = peer
        environment = {
            **os.environ,
            **limits,
            "KERAS_BACKEND": "tensorflow",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "-1",  # CPU against CPU
            "JAX_PLATFORMS": "cpu",
            "OMP_NUM_THREADS": str(threads),
            "OPENBLAS_NUM_THREADS": str(threads),
            THREADS: str(threads),
            **peer.environment,
        }
        self._process = subprocess.Popen(
            [peer.python or sys.executable, "-m", "benchmarks.worker", peer.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[1],
        )
        # Libraries take seconds to load; so all sides load at the same time.
        self._send(do="load")
        self._loaded = False

    @property
    def is_alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def ask(self, **order: Any) -> dict[str, Any]:
        """Send one order and wait for its answer.

        Raises:
            UnavailableError: if the process has ended or reports an error.
        """
        if not self._loaded:
            self._loaded = True
            self._receive()
        self._send(**order)
        return self._receive()

    def _send(self, **order: Any) -> None:
        if self._process.stdin is None:
            raise RuntimeError("the process has no pipes")
        # If the process has ended, reading its answer will tell.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        if self._process.stdout is None:
            raise RuntimeError("the process has no pipes")
        line = self._process.stdout.readline()
        if not line:
            raise UnavailableError(f"its process ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise UnavailableError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


Start = Callable[[Peer], Side]


class Sides:
    """The processes of a run, started on first use. A context manager, which ends them.

    Args:
        start: starts a side's process.
    """

    def __init__(self, start: Start = Side) -> None:
        self._start = start
        self._started: dict[tuple[Any, ...], Side] = {}

    def __enter__(self) -> Sides:
        return self

    def __exit__(self, *_: object) -> None:
        for side in self._started.values():
            side.close()

    def of(self, peer: Peer) -> Side:
        """Return the peer's process; a new one if it has ended."""
        key = peer.module, peer.python, *peer.environment.items()
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
    sides = {
        name: processes.of(peer) for name, peer in peers.items() if results[name].problem is None
    }
    seconds = _prepare(case, sides, results)
    slowest = max([ROUND_SECONDS, *seconds.values()])
    rounds = min(rounds, max(LEAST_ROUNDS, int(CASE_SECONDS / slowest)))
    calls = {name: max(1, int(ROUND_SECONDS / once)) for name, once in seconds.items()}
    for number in range(rounds):
        # Reversed every other round, so that no side always follows the same neighbour.
        for name in list(calls)[:: 1 if number % 2 == 0 else -1]:
            if results[name].problem is not None:
                continue
            try:
                answer = sides[name].ask(do="round", calls=calls[name])
            except UnavailableError as error:
                results[name].problem = str(error)
                continue
            results[name].samples.append(answer["seconds"])
            results[name].probes.append(answer["probe"])
    return results


def _prepare(case: Case, sides: dict[str, Side], results: dict[str, Result]) -> dict[str, float]:
    """Warms all sides up and compares their results with heed's.

    Returns:
        The seconds of a call for each side that can be timed.
    """
    seconds = {}
    own = next(name for name, side in sides.items() if side.peer.is_heed)
    with tempfile.TemporaryDirectory(prefix="heed-benchmark-") as folder:
        file = Path(folder) / "results.npz"

        def run(name: str, case: Case) -> tuple[float, list[np.ndarray]]:
            answer = sides[name].ask(do="prepare", case=case.to_dict(), results=str(file))
            with np.load(file) as arrays:
                return answer["seconds"], [arrays[key] for key in arrays.files]

        expected = {}
        try:
            # The case itself comes last, because the process is timed on the last one.
            for other in {side.peer.computes(case) for side in sides.values()} - {case}:
                _, expected[other] = run(own, other)
            seconds[own], expected[case] = run(own, case)
        except UnavailableError as error:
            results[own].problem = str(error)
        for name, side in sides.items():
            if name == own:
                continue
            other = side.peer.computes(case)
            results[name].instead = other.name if other != case else None
            if other not in expected:
                results[name].problem = f"there is no result of {own} to compare with"
                continue
            try:
                once, arrays = run(name, other)
            except UnavailableError as error:
                results[name].problem = str(error)
                continue
            if not side.peer.is_limit:
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


def measure_memory(case: Case, peers: dict[str, Peer], start: Start = Side) -> dict[str, Result]:
    """Measures the peak memory that each side adds for one case, each in a new process.

    Args:
        case: the case.
        peers: the sides by name.
        start: starts a side's process.

    Returns:
        A result for each side.
    """
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
            answer = side.ask(do="memory", case=case.to_dict(), warm_up=warm_up.to_dict())
            result.added_mib = answer["peak"] - answer["base"] - answer["gradients"]
        except UnavailableError as error:
            result.problem = str(error)
        finally:
            side.close()
    return results


def too_large(peer: Peer, case: Case) -> str | None:
    """Why a side that builds the scores cannot run: it would need more memory than is free."""
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
