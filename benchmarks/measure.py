"""Runs the sides against each other: own processes, alternated, many short rounds, medians."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cases import Case
from benchmarks.peers import Peer

# A round is as many calls as fit, at least one: long enough for the clock, short enough that a
# burst of somebody else's work falls on few rounds.
ROUND_SECONDS = 0.1
# A sample whose probe took this many times the run's quickest probes is set aside as disturbed.
DISTURBED = 1.5


class UnavailableError(Exception):
    """A side that cannot run: its package is missing, or it fails on the case."""


class Side:
    """A peer's process.

    Args:
        peer: which.
    """

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        environment = {
            **os.environ,
            "KERAS_BACKEND": "tensorflow",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "OPENBLAS_NUM_THREADS": "1",  # for the probe, whose idle threads would spin otherwise
            **peer.environment,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", peer.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[1],
        )

    def ask(self, **order: Any) -> dict[str, Any]:
        """Sends one order and waits for its answer.

        Raises:
            UnavailableError: if the process has ended or answers with an error.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the process has no pipes")
        try:
            stdin.write(json.dumps(order) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise UnavailableError(f"its process ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise UnavailableError(answer["error"])
        return answer

    def close(self) -> None:
        """Ends the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@dataclass
class Result:
    """What one side did on one case.

    Args:
        samples: seconds a call, one for each round.
        probes: seconds of the probe beside each sample.
        added_mib: peak memory beyond the inputs, for memory cases.
        problem: why there is no figure.
    """

    samples: list[float] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)
    added_mib: float | None = None
    problem: str | None = None

    def undisturbed(self, quickest: float) -> list[float]:
        """The samples beside which the probe was quick; at least the better half of all."""
        pairs = sorted(zip(self.probes, self.samples, strict=True))
        half = (len(pairs) + 1) // 2
        kept = [sample for probe, sample in pairs if probe <= DISTURBED * quickest]
        return kept if len(kept) >= half else [sample for _, sample in pairs[:half]]


def median(result: Result, results: dict[str, Result]) -> float | None:
    """The median of a side's undisturbed samples, in seconds; None where there is none."""
    if not result.samples:
        return None
    probes = sorted(probe for each in results.values() for probe in each.probes)
    return statistics.median(result.undisturbed(probes[len(probes) // 10]))


def time_case(
    case: Case, peers: dict[str, Peer], rounds: int, start: Callable[[Peer], Side] = Side
) -> dict[str, Result]:
    """Times all sides on one case, alternating their processes round by round.

    Args:
        case: what to compute.
        peers: the sides by name.
        rounds: samples of each side.
        start: makes a side's process.

    Returns:
        A result for each side.
    """
    results = {name: Result() for name in peers}
    sides: dict[str, Side] = {}
    calls: dict[str, int] = {}
    try:
        for name, peer in peers.items():
            sides[name] = start(peer)
            try:
                sides[name].ask(do="prepare", case=case.to_dict())
                once = sides[name].ask(do="round", calls=1)["seconds"]
                calls[name] = max(1, int(ROUND_SECONDS / max(once, 1e-6)))
                # Long enough to have left the cold caches and clocks of the start behind.
                sides[name].ask(do="round", calls=calls[name])
            except UnavailableError as error:
                results[name].problem = str(error)
        for round_number in range(rounds):
            # Every other round the other way round: no side always follows the same neighbour.
            for name in list(calls)[:: 1 if round_number % 2 == 0 else -1]:
                if results[name].problem is not None:
                    continue
                try:
                    answer = sides[name].ask(do="round", calls=calls[name])
                except UnavailableError as error:
                    results[name].problem = str(error)
                    continue
                results[name].samples.append(answer["seconds"])
                results[name].probes.append(answer["probe"])
    finally:
        for side in sides.values():
            side.close()
    return results


def memory_case(
    case: Case, peers: dict[str, Peer], start: Callable[[Peer], Side] = Side
) -> dict[str, Result]:
    """Measures the peak memory that each side adds on one case, each in a fresh process.

    Args:
        case: what to compute.
        peers: the sides by name.
        start: makes a side's process.

    Returns:
        A result for each side.
    """
    results = {}
    # The same kind at a small size brings in the libraries' own memory.
    warm_up = Case(1, 1, 64, case.head_dim, causal=case.causal, backward=case.backward)
    for name, peer in peers.items():
        results[name] = result = Result()
        side = start(peer)
        try:
            answer = side.ask(do="memory", case=case.to_dict(), warm_up=warm_up.to_dict())
            result.added_mib = answer["peak"] - answer["base"]
        except UnavailableError as error:
            result.problem = str(error)
        finally:
            side.close()
    return results
