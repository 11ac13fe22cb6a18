"""The results of a run: samples, the figures that they give, and their JSON file."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.cases import Case
from benchmarks.instruction_sets import environment
from benchmarks.register_peak import measure_rates


def quartile(samples: list[float], number: int = 1) -> float:
    """Return a quartile of samples: the lower one for a machine that others disturb, or 2 for the median."""
    if len(samples) < 2:
        return samples[0]
    # Of two samples the lower quartile would lie below both.
    return max(min(samples), statistics.quantiles(samples, n=4)[number - 1])


@dataclass(frozen=True)
class Row:
    """A measured figure and its bar."""

    name: str  # with its setting: "2 processes / 1, base preset, one thread each"
    value: float
    bar: float | None = None  # the value to reach, if any
    at_most: bool = False  # or at least
    unit: str = ""
    note: str = ""  # what a reader needs to judge it
    seconds: float | None = None  # heed's own time, if the value is a ratio of times
    # Value and seconds of another interpreter's heed.
    before: tuple[float, float | None] | None = None

    @property
    def met(self) -> bool | None:
        """Whether the value reaches its bar; None without one."""
        if self.bar is None:
            return None
        return self.value <= self.bar if self.at_most else self.value >= self.bar


@dataclass
class Result:
    """The result of one side on one case."""

    samples: list[float] = field(default_factory=list)  # seconds per call, one for each round
    bases: list[float] = field(default_factory=list)  # seconds of what is subtracted from each
    added_mib: float | None = None  # peak memory beyond inputs and gradients, for memory cases
    instead: str | None = None  # the name of the case that the side computed instead
    problem: str | None = None  # why there is no result

    @property
    def seconds(self) -> float | None:
        """The lower quartile of the samples, less that of the bases; None without any."""
        return quartile(self.samples) - quartile(self.bases) if self.samples else None


Results = list[tuple[Case, dict[str, Result]]]


@dataclass
class Record:
    """One run of one suite."""

    suite: str
    about: dict[str, Any]  # machine, versions, command, day
    times: Results = field(default_factory=list)
    memory: Results = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # what could not be measured, and why

    @property
    def passed(self) -> bool:
        """Whether something was measured, nothing failed, and no row misses its bar."""
        found = self.times or self.memory or self.rows
        return bool(found) and not self.problems and all(row.met is not False for row in self.rows)

    def add_row(self, row: Row) -> None:
        """Add a row, or replace the one of its name."""
        _put(self.rows, row, lambda known: known.name == row.name)

    def add(self, where: str, case: Case, by_side: dict[str, Result]) -> None:
        """Add a case's results to "times" or "memory", or replace earlier ones."""
        _put(getattr(self, where), (case, by_side), lambda known: known[0] == case)

    def take_over(self, earlier: Record) -> None:
        """Take over the results of an earlier run.

        Raises:
            ValueError: if the machine, its instruction set or the number of threads was another one.
        """
        for key in ("processor", "cores", "threads", "instruction_set", "held_to"):
            if earlier.about[key] != self.about[key]:
                raise ValueError(
                    f"`{key}` of the earlier results must be that of this run. Received: "
                    f"{earlier.about[key]!r} and {self.about[key]!r}"
                )
        for key in ("command", "day", "commit"):
            before, now = str(earlier.about[key]), str(self.about[key])
            self.about[key] = before if now in before else f"{before}, {now}"
        self.times, self.memory, self.rows = earlier.times, earlier.memory, earlier.rows

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        record = dataclasses.asdict(self)
        for where in ("times", "memory"):
            names = [case.name for case, _ in getattr(self, where)]
            record[where] = [
                {"name": name, "case": case, "sides": sides}
                for name, (case, sides) in zip(names, record[where], strict=True)
            ]
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read what `write` wrote."""
        record = json.loads(path.read_text(encoding="utf-8"))
        for where in ("times", "memory"):
            record[where] = [
                (
                    Case(**entry["case"]),
                    {name: Result(**side) for name, side in entry["sides"].items()},
                )
                for entry in record[where]
            ]
        return cls(**{**record, "rows": [read_row(row) for row in record["rows"]]})


def _put(entries: list[Any], entry: Any, is_same: Callable[[Any], bool]) -> None:
    """Replace the entry that is the same one, or append it."""
    place = next((place for place, known in enumerate(entries) if is_same(known)), len(entries))
    entries[place : place + 1] = [entry]


def read_row(fields: dict[str, Any]) -> Row:
    """Return a row from JSON, which has lists instead of tuples."""
    before = fields["before"]
    return Row(**{**fields, "before": before and tuple(before)})


def name_results(suite: str, instruction_set: str | None) -> str:
    """Return the name of a suite's results, such as `bars` or `bars-avx2`."""
    return suite if instruction_set is None else f"{suite}-{instruction_set}"


def describe_environment(
    command: str, threads: int, instruction_set: str | None = None
) -> dict[str, Any]:
    """Return the command, day, processor, cores, register peak and versions.

    `instruction_set` is the one that all sides are held to, if any.
    """
    # In a separate process, so that this one does not load TensorFlow.
    code = "import json, heed; print(json.dumps(heed.info()))"
    info = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment(instruction_set)},
    )
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        model = found.group(1) if found else model
    versions = json.loads(info.stdout)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "command": command,
        "day": time.strftime("%Y-%m-%d"),
        "commit": _say("git", "describe", "--always", "--dirty"),
        "processor": model,
        "cores": cores,
        "threads": threads,
        "held_to": instruction_set,
        "gpu": _say("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        "register_peak": measure_rates(versions["instruction_set"], threads),
        **versions,
        "ctranslate2": _version("ctranslate2"),
        "llama_cpp": _version("llama-cpp-python"),
        "numpy": _version("numpy"),
    }


def _say(*command: str) -> str:
    """Return what a command says, or "" where it fails: outside a git checkout, without a GPU."""
    folder = Path(__file__).parent
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return answer.stdout.strip()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
