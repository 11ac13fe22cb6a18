"""The results of a run: samples, which of them count, and their JSON file."""

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
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.cases import Case
from benchmarks.instruction_sets import environment
from benchmarks.register_peak import measure_rates

# A sample is disturbed if its probe took this many times the case's fastest probe.
DISTURBED = 1.4


@dataclass(frozen=True)
class Row:
    """A measured figure and its bar.

    Args:
        name: the figure, with its setting: "2 processes / 1, base preset, one thread each".
        value: the figure.
        bar: the value to reach; None for a figure without one.
        at_most: whether the value must be at most the bar, instead of at least.
        unit: such as "times" or "s"; may be empty.
        note: what a reader needs to judge it.
        seconds: heed's own time, if the value is a ratio of times.
        before: value and seconds of the heed of another interpreter.
    """

    name: str
    value: float
    bar: float | None = None
    at_most: bool = False
    unit: str = ""
    note: str = ""
    seconds: float | None = None
    before: tuple[float, float | None] | None = None

    @property
    def met(self) -> bool | None:
        """Whether the value reaches its bar; None without one."""
        if self.bar is None:
            return None
        return self.value <= self.bar if self.at_most else self.value >= self.bar


@dataclass
class Result:
    """The result of one side on one case.

    Args:
        samples: seconds per call, one for each round.
        probes: seconds of the probe of each sample.
        added_mib: peak memory beyond inputs and gradients, for memory cases.
        instead: the name of the case that the side computed instead.
        problem: why there is no result.
    """

    samples: list[float] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)
    added_mib: float | None = None
    instead: str | None = None
    problem: str | None = None

    def undisturbed(self, quickest: float) -> list[float]:
        """Return the samples with fast probes; at least the better half of all."""
        pairs = sorted(zip(self.probes, self.samples, strict=True))
        kept = max(len(pairs) - self.disturbed(quickest), (len(pairs) + 1) // 2)
        return [sample for _, sample in pairs[:kept]]

    def disturbed(self, quickest: float) -> int:
        """Return the number of samples with slow probes."""
        return sum(probe > DISTURBED * quickest for probe in self.probes)


Results = list[tuple[Case, dict[str, Result]]]


def quickest_probe(by_side: dict[str, Result]) -> float:
    """Return the fastest probe of a case, in seconds: that of the undisturbed machine."""
    return min((probe for result in by_side.values() for probe in result.probes), default=0.0)


def median(result: Result, by_side: dict[str, Result]) -> float | None:
    """Return the median of a side's undisturbed samples, in seconds; None without samples."""
    if not result.samples:
        return None
    return statistics.median(result.undisturbed(quickest_probe(by_side)))


@dataclass
class Record:
    """One run of one suite.

    Args:
        suite: the name of the suite.
        about: machine, versions, command, day.
        times: times by case and side.
        memory: memory by case and side.
        rows: figures of measurements.
        problems: what could not be measured, and why.
    """

    suite: str
    about: dict[str, Any]
    times: Results = field(default_factory=list)
    memory: Results = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether something was measured, nothing failed, and no row misses its bar."""
        found = self.times or self.memory or self.rows
        return bool(found) and not self.problems and all(row.met is not False for row in self.rows)

    def add_row(self, row: Row) -> None:
        """Add a row, or replace the one of its name."""
        names = [known.name for known in self.rows]
        place = names.index(row.name) if row.name in names else len(names)
        self.rows[place : place + 1] = [row]

    def add(self, where: str, case: Case, by_side: dict[str, Result]) -> None:
        """Add a case's results, or replace earlier ones.

        Args:
            where: "times" or "memory".
            case: the case.
            by_side: the results of the sides.
        """
        results: Results = getattr(self, where)
        for place, (known, _) in enumerate(results):
            if known == case:
                results[place] = (case, by_side)
                return
        results.append((case, by_side))

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

    def samples(self) -> tuple[int, int, int]:
        """Count all samples, those set aside as disturbed, and disturbed ones that still count."""
        total = aside = kept = 0
        for _, by_side in self.times:
            quickest = quickest_probe(by_side)
            for result in by_side.values():
                left_out = len(result.samples) - len(result.undisturbed(quickest))
                total += len(result.samples)
                aside += left_out
                kept += result.disturbed(quickest) - left_out
        return total, aside, kept

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        record: dict[str, Any] = {"suite": self.suite, "about": self.about}
        for where in ("times", "memory"):
            record[where] = [_to_json(*entry) for entry in getattr(self, where)]
        record["rows"] = [dataclasses.asdict(row) for row in self.rows]
        record["problems"] = self.problems
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read what `write` wrote."""
        record = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            record["suite"],
            record["about"],
            [_from_json(entry) for entry in record["times"]],
            [_from_json(entry) for entry in record["memory"]],
            [read_row(row) for row in record.get("rows", ())],
            record.get("problems", []),
        )


def read_row(fields: dict[str, Any]) -> Row:
    """Return a row from JSON, which has lists instead of tuples."""
    before = fields["before"]
    return Row(**{**fields, "before": before and tuple(before)})


def name_results(suite: str, instruction_set: str | None) -> str:
    """Return the name of a suite's results, such as `bars` or `bars-avx2`."""
    return suite if instruction_set is None else f"{suite}-{instruction_set}"


def _to_json(case: Case, by_side: dict[str, Result]) -> dict[str, Any]:
    sides = {
        name: {"median_seconds": median(result, by_side), **dataclasses.asdict(result)}
        for name, result in by_side.items()
    }
    return {"name": case.name, "case": case.to_dict(), "sides": sides}


def _from_json(entry: dict[str, Any]) -> tuple[Case, dict[str, Result]]:
    fields = [each.name for each in dataclasses.fields(Result)]
    sides = {
        name: Result(**{key: side[key] for key in fields}) for name, side in entry["sides"].items()
    }
    return Case(**entry["case"]), sides


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
        "commit": _commit(),
        "processor": model,
        "cores": cores,
        "threads": threads,
        "held_to": instruction_set,
        "gpu": _gpu(),
        "register_peak": measure_rates(versions["instruction_set"], threads),
        **versions,
        "torch": _version("torch"),
        "jax": _version("jax"),
        "ctranslate2": _version("ctranslate2"),
        "llama_cpp": _version("llama-cpp-python"),
        "numpy": _version("numpy"),
    }


def _commit() -> str:
    """Return the commit of the sources, or "" outside a git checkout."""
    return _say("git", "describe", "--always", "--dirty")


def _gpu() -> str:
    """Return the name and the driver of the GPU, or ""."""
    return _say("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")


def _say(*command: str) -> str:
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
