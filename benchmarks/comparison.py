"""Two sides in one process, alternately; each measurement in a process of its own with Keras' backend that it needs."""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.instruction_sets import environment as limits
from benchmarks.report import fill
from benchmarks.results import describe_environment
from benchmarks.scale import Row, table

# A round of quick calls repeats them for so long.
_ROUND_SECONDS = 0.02
# Begins the lines that a measurement's process prints for the one that started it.
_MARK = "row: "


def alternate(
    *sides: Callable[[], Any], rounds: int, quartile: int = 1, budget: float = math.inf
) -> list[float]:
    """Return the seconds of a call of each side: a quartile of rounds in turn, which reverse their order each time.

    Args:
        sides: functions that return when their result is there. Each runs twice before.
        rounds: at least 2.
        quartile: the lower one for a machine that others disturb, or 2 for the median.
        budget: the seconds in which they fit as many rounds as they can, at least 2.
    """
    calls, whole = [], 0.0
    for side in sides:
        side()
        seconds = max(1e-9, _seconds(side, 1))
        calls.append(max(1, int(_ROUND_SECONDS / seconds)))
        whole += calls[-1] * seconds
    rounds = max(2, min(rounds, int(min(budget / whole, 1e9))))
    samples: list[list[float]] = [[] for _ in sides]
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            for place in range(len(sides))[:: 1 if number % 2 == 0 else -1]:
                samples[place].append(_seconds(sides[place], calls[place]))
    finally:
        gc.enable()
    # Of two rounds, the usual method would go below both.
    return [
        statistics.quantiles(column, n=4, method="inclusive")[quartile - 1] for column in samples
    ]


def _seconds(run: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


def ratio(
    name: str,
    heed: Callable[[], Any],
    peer: Callable[[], Any],
    bar: float | None,
    rounds: int,
    *,
    quartile: int = 1,
    budget: float = math.inf,
    note: str = "",
) -> Row:
    """Return a row of the peer's time / heed's time; see `alternate`."""
    ours, theirs = alternate(heed, peer, rounds=rounds, quartile=quartile, budget=budget)
    times = f"heed {_readable(ours)}, peer {_readable(theirs)}"
    return Row(name, theirs / ours, bar, note="; ".join(filter(None, [times, note])))


def _readable(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def attempt(what: str, rows: Iterator[Row | str]) -> Iterator[Row | str]:
    """Yield the rows; if one fails, what it was and why instead of the rest."""
    try:
        yield from rows
    except Exception as error:
        yield f"{what}: {type(error).__name__}: {error}"[:300]


class Measurement(NamedTuple):
    """A function that takes the number of rounds and yields rows, and sentences about rows that could not be measured.

    Args:
        module: in `benchmarks`.
        function: its name there.
        backend: Keras' backend of the process.
    """

    module: str
    function: str
    backend: str


@dataclass(frozen=True)
class Comparison:
    """A suite of measurements: `python -m benchmarks NAME`.

    Args:
        name: the suite.
        description: one line.
        measurements: by name.
        rounds: the default number.
        section: the name of its section in a page, from what is known of the machine.
        look_around: what else is known of the machine, for the results.
        describe: the machine and the versions as a sentence.
    """

    name: str
    description: str
    measurements: Mapping[str, Measurement]
    rounds: int
    section: Callable[[dict[str, Any]], str]
    describe: Callable[[dict[str, Any]], str]
    look_around: Callable[[], dict[str, Any]] = dict

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Measures; the status is 0 if every row was measured and no bar is missed."""
        words = list(sys.argv[1:] if arguments is None else arguments)
        parser = self._parser()
        options = parser.parse_args(words)
        for name in options.names:
            if name not in self.measurements:
                parser.error(f"there is no measurement {name!r}: {', '.join(self.measurements)}")
        for name, least in (("rounds", 2), ("threads", 1)):
            if getattr(options, name) < least:
                parser.error(f"--{name} must be at least {least}, got {getattr(options, name)}")
        if options.child:
            return self._measure_here(options.child, options.rounds)
        command = shlex.join(["python", "-m", "benchmarks", self.name, *words])
        about = {
            **describe_environment(command, options.threads, options.instruction_set),
            **self.look_around(),
        }
        section = self.section(about)
        if options.markdown is not None:  # before the minutes of measuring
            try:
                fill(options.markdown.read_text(encoding="utf-8"), section, "")
            except (OSError, ValueError) as error:
                parser.error(f"--markdown: {error}")
        rows: list[Row] = []
        problems: list[str] = []
        page = ""
        for name in options.names or self.measurements:
            try:
                for found in self._measure_in_child(
                    name, options.rounds, options.threads, options.seconds, options.instruction_set
                ):
                    if isinstance(found, Row):
                        rows.append(found)
                        text = f"{found.name}: {found.value:.3g} {found.unit}; {found.note}"
                    else:
                        text = f"not measured: {found}"
                        problems.append(text)
                    print(f"  {text}", file=sys.stderr, flush=True)
                    self._write(options.results, about, rows, problems)  # it may end any time
            except ChildProcessError as error:
                problems.append(f"not measured: {name}: {error}")
            page = self._write(options.results, about, rows, problems)
        print(f"\n## {self.name}: {self.description}\n\n{page}\n")
        if options.markdown is not None:
            whole = options.markdown.read_text(encoding="utf-8")
            options.markdown.write_text(fill(whole, section, page), encoding="utf-8")
        return 1 if problems or any(row.met is False for row in rows) else 0

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(
            prog=f"python -m benchmarks {self.name}", description=self.description
        )
        parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(self.measurements))
        parser.add_argument(
            "--rounds", type=int, default=self.rounds, help="of each side (default %(default)s)"
        )
        parser.add_argument("--threads", type=int, default=2, help="of each framework (default 2)")
        parser.add_argument(
            "--seconds", type=float, help="end each measurement after so long, and keep its rows"
        )
        parser.add_argument(
            "--instruction-set", help="hold heed and its peers to one, such as avx2"
        )
        parser.add_argument(
            "--markdown", type=Path, metavar="FILE", help="fills its section: 'figures: NAME'"
        )
        parser.add_argument(
            "--results", type=Path, default=Path(__file__).parent / "results", metavar="FOLDER"
        )
        parser.add_argument("--child", help=argparse.SUPPRESS)
        return parser

    def _write(
        self, folder: Path, about: dict[str, Any], rows: list[Row], problems: list[str]
    ) -> str:
        """Write everything so far as JSON and as Markdown, which it returns."""
        page = "\n\n".join([table(rows), *problems, self.describe(about)])
        record = {
            "suite": self.name,
            "about": about,
            "rows": [asdict(row) for row in rows],
            "problems": problems,
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
        (folder / f"{self.name}.md").write_text(page + "\n", "utf-8")
        return page

    def _measure_here(self, name: str, rounds: int) -> int:
        """Print the rows and problems of a measurement, a line each."""
        measurement = self.measurements[name]
        module = importlib.import_module(f"benchmarks.{measurement.module}")
        for found in getattr(module, measurement.function)(rounds):
            line = found if isinstance(found, str) else asdict(found)
            print(_MARK + json.dumps(line), flush=True)
        return 0

    def _measure_in_child(
        self,
        name: str,
        rounds: int,
        threads: int,
        seconds: float | None = None,
        instruction_set: str | None = None,
    ) -> Iterator[Row | str]:
        """Yield the rows and problems of a measurement, from a process with the right backend and number of threads.

        Raises:
            ChildProcessError: if it fails or takes too long, with the last line of its errors.
        """
        environment = (
            os.environ
            | limits(instruction_set)
            | {
                "KERAS_BACKEND": self.measurements[name].backend,
                "OMP_NUM_THREADS": str(threads),
                "NPROC": str(threads),
                "TF_NUM_INTRAOP_THREADS": str(threads),
            }
        )
        command = [sys.executable, "-m", "benchmarks", self.name, "--child", name]
        command += ["--rounds", str(rounds)]
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            limit = threading.Timer(seconds or threading.TIMEOUT_MAX, process.kill)
            limit.daemon = True
            limit.start()
            started = time.monotonic()
            for line in process.stdout or ():
                if line.startswith(_MARK):
                    found = json.loads(line.removeprefix(_MARK))
                    yield found if isinstance(found, str) else Row(**found)
            status = process.wait()
            limit.cancel()
            errors.seek(0)
            said = errors.read()
            sys.stderr.write(said)
            if status and seconds and time.monotonic() - started >= seconds:
                raise ChildProcessError(f"it took longer than {seconds:g} s")
            if status:
                lines = said.strip().splitlines() or [f"its status is {status}"]
                raise ChildProcessError(lines[-1][:300])


def name_versions(about: dict[str, Any]) -> str:
    """Return the versions in use, for a sentence."""
    return ", ".join(f"{name} {about[name]}" for name in ("heed", "keras", "torch", "jax"))
