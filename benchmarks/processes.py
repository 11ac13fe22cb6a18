"""Worker processes, and what they measure: the times and the memory of a case's sides, and rows of other kinds."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import THREADS, Peer
from benchmarks.results import Result, Row, read_row
from benchmarks.suites import Measurement
from benchmarks.turns import take_turns
from benchmarks.worker import free_memory

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
    """A side or a measurement cannot run: its package is missing, it fails, or its results differ from heed's."""


class Machine(NamedTuple):
    """What all processes of a run share: threads of a side, and variables that hold it to an instruction set."""

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
            **dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", THREADS), count),
        }
        return Process({**self.limits, **fixed, **peer.environment}, peer.python)

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
    """A worker, which answers one order after another. A context manager, which ends it.

    It is no `heed.processes.child.Child`: with `--before`, and another interpreter, its heed may have no such class.
    `environment` comes on top of that of this process.
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

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.communicate()  # closes its pipes
        self._errors.close()

    @property
    def is_alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def ask(self, **order: Any) -> dict[str, Any]:
        """Send an order and wait for its answer, which is an `UnavailableError` if there is none or an error."""
        orders, answers = self._process.stdin, self._process.stdout
        with contextlib.suppress(BrokenPipeError):  # it has ended: there is no answer
            print(json.dumps(order), file=orders, flush=True)
        line = answers.readline()  # type: ignore[union-attr]
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


class Sides(contextlib.ExitStack):
    """The processes of a run, started on first use. A context manager, which ends them."""

    def __init__(self, start: Callable[[Peer], Process]) -> None:
        super().__init__()
        self._start = start
        self._started: dict[str, Process] = {}

    def of(self, name: str, peer: Peer) -> Process:
        """Return the peer's process; a new one if it has ended."""
        side = self._started.get(name)
        if side is None or not side.is_alive:
            side = self._started[name] = self.enter_context(self._start(peer))
        return side


def time_case(
    case: Case, peers: dict[str, Peer], rounds: int, processes: Sides
) -> dict[str, Result]:
    """Time all sides on one case, alternating their processes round by round.

    Sides whose first results differ from those of the first heed are not timed. A call of seconds gets fewer rounds.
    """
    results = {name: Result() for name in peers}
    seconds: dict[str, float] = {}  # of a call
    expected: dict[Case, list[np.ndarray]] = {}  # heed's results
    own = next(name for name, peer in peers.items() if peer.is_heed)
    # The case itself comes last, because a process is timed on the last one.
    alternatives = {peer.computes(case) for peer in peers.values()} - {case}
    with tempfile.TemporaryDirectory(prefix="heed-benchmark-") as folder:

        def run(name: str, case: Case) -> tuple[float, list[np.ndarray]]:
            peer, file = peers[name], str(Path(folder, "results.npz"))
            order = {"target": peer.target, "options": peer.options, "case": asdict(case)}
            answer = processes.of(name, peer).ask(do="prepare", **order, results=file)
            with np.load(file) as arrays:
                return answer["seconds"], [arrays[key] for key in arrays.files]

        for name in sorted(peers, key=lambda name: name != own):
            peer, result = peers[name], results[name]
            computed = peer.computes(case)
            result.instead = computed.name if computed != case else None
            try:
                check_memory(peer, case)
                if name == own:
                    expected = {other: run(own, other)[1] for other in alternatives}
                elif computed not in expected:
                    raise UnavailableError(f"there is no result of {own} to compare with")
                once, arrays = run(name, computed)
                if not peer.is_limit:
                    check_results(arrays, expected.setdefault(computed, arrays), case.dtype)
                seconds[name] = once
            except UnavailableError as error:
                result.problem = str(error)

    def sample(name: str) -> None:
        if results[name].problem is None:
            calls = max(1, int(ROUND_SECONDS / seconds[name]))
            try:
                answer = processes.of(name, peers[name]).ask(do="round", calls=calls)
                results[name].samples.append(answer["seconds"])
                results[name].bases.append(answer["base"])
            except UnavailableError as error:
                results[name].problem = str(error)

    slowest = max([ROUND_SECONDS, *seconds.values()])
    rounds = min(rounds, max(LEAST_ROUNDS, int(CASE_SECONDS / slowest)))
    take_turns([functools.partial(sample, name) for name in seconds], rounds)
    return results


def check_results(actual: list[np.ndarray], expected: list[np.ndarray], dtype: str) -> None:
    """Raise an `UnavailableError` if output and gradients differ from heed's by more than rounding."""
    shapes, wanted = ([array.shape for array in arrays] for arrays in (actual, expected))
    if shapes != wanted:
        raise UnavailableError(f"its results have shapes {shapes}, heed's {wanted}")
    # Gradients are compared relative to the largest of all: that of a key's bias is 0 but for rounding.
    for name, first, last in (("output", 0, 1), ("gradients", 1, len(expected))):
        pairs = list(zip(actual[first:last], expected[first:last], strict=True))
        error = _largest(one - other for one, other in pairs)
        size = _largest(other for _, other in pairs)
        if not error <= TOLERANCE[dtype] * size:  # also true for NaN
            raise UnavailableError(
                f"its {name} differs from heed's by {error:.3g}, where the largest is {size:.3g}"
            )


def _largest(arrays: Iterable[np.ndarray]) -> float:
    return float(np.max([np.max(np.abs(array), initial=0.0) for array in arrays], initial=0.0))


def measure_memory(
    case: Case, peers: dict[str, Peer], start: Callable[[Peer], Process]
) -> dict[str, Result]:
    """Measure the peak memory that each side adds for one case, each in a new process."""
    results = {name: Result() for name in peers}
    # A small case of the same kind loads the libraries first.
    keys = None if case.keys is None else 64
    warm_up = replace(case, batch=1, heads=1, key_heads=None, length=64, keys=keys)
    for name, peer in peers.items():
        order = {"target": peer.target, "options": peer.options, "case": asdict(case)}
        try:
            check_memory(peer, case)
            with start(peer) as side:
                answer = side.ask(do="memory", **order, warm_up=asdict(warm_up))
            results[name].added_mib = answer["peak"] - answer["base"] - answer["gradients"]
        except UnavailableError as error:
            results[name].problem = str(error)
    return results


def check_memory(peer: Peer, case: Case) -> None:
    """Raise an `UnavailableError` if the memory that is free does not suffice for a side that builds the scores."""
    needed, free = case.score_tensors * case.score_bytes / 2**30, free_memory() / 1024
    if peer.builds_scores and needed > free:
        raise UnavailableError(f"needs about {needed:.0f} GiB of memory, {free:.0f} GiB are free")


def measure_rows(
    target: str, rounds: int, processes: Sequence[Process], seconds: float | None = None
) -> Iterator[Row | str]:
    """Yield the rows and problems of a measurement.

    Args:
        target: "module:function" in `benchmarks`.
        rounds: the number of samples of each side.
        processes: one, or two with different heeds: the rows of the first then come at the end, with the second's
            figures. The two take turns at each round, and only one of them runs at a time.
        seconds: ends the processes after so long; None for never.

    Raises:
        UnavailableError: if the first process fails or takes too long.
    """

    def expire() -> None:
        for process in processes:
            process.kill()

    limit = threading.Timer(seconds or threading.TIMEOUT_MAX, expire)
    limit.daemon = True
    limit.start()
    try:
        order = {"do": "measure", "target": f"benchmarks.{target}", "rounds": rounds}
        for process in processes:
            process.ask(**order, pauses=len(processes) > 1)
        steps = [*map(_steps, processes)]
        yield from _join(*steps) if len(steps) > 1 else steps[0]
    except UnavailableError as error:
        if not limit.finished.is_set():
            raise
        raise UnavailableError(f"it took longer than {seconds:g} s") from error
    finally:
        limit.cancel()


def _steps(process: Process) -> Iterator[Any]:
    """Yield each row and each problem, and None for each pause."""
    while "end" not in (answer := process.ask(do="go")):
        yield read_row(answer["row"]) if "row" in answer else answer.get("problem")


def _join(own: Iterator[Any], other: Iterator[Any]) -> Iterator[Row | str]:
    """Return what the first heed finds, with the other's figures of the same rows, once both have ended."""

    def whole(steps: Iterator[Any]) -> Iterator[Any]:
        """Yield the steps, and the error if there is one."""
        try:
            yield from steps
        except UnavailableError as error:
            yield str(error)

    pairs = [*itertools.zip_longest(whole(own), whole(other))]
    before = {theirs.name: theirs for _, theirs in pairs if isinstance(theirs, Row)}
    yield from (f"the other heed: {theirs}" for _, theirs in pairs if isinstance(theirs, str))
    for found, _ in pairs:
        if isinstance(found, Row) and found.name in before:
            known = before[found.name]
            found = replace(found, before=(known.value, known.seconds))
        if found is not None:
            yield found
