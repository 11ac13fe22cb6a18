"""Measures heed beside its peers: cases, each side in a process of its own, and rows of other measurements."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import picture, processes, report
from benchmarks.cases import Case
from benchmarks.instruction_sets import environment
from benchmarks.peers import PEERS, Peer, instruction_sets
from benchmarks.processes import Machine, Sides, UnavailableError
from benchmarks.results import Record, Row, describe_environment, name_results
from benchmarks.suites import SUITES, Suite, heeds_of

# Options of suites of cases only.
_OF_CASES = ("case", "peers", "instruction_sets", "no_time", "no_memory", "picture")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the status is 0 if something was measured, nothing failed, and no row misses its bar."""
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    parser = _parser()
    options = parser.parse_args(words)
    chosen = _choose(options.suites, parser)
    _check(options, chosen, parser)
    command = shlex.join(["python", "-m", "benchmarks", *words])
    records = [_read(name, options) for name in chosen] if options.no_run else None
    if records is None:
        about = describe_environment(command, options.threads, options.instruction_set)
        records = [Record(name, {**about}) for name in chosen]
    if options.markdown is not None:  # before the minutes of measuring
        try:
            page = options.markdown.read_text(encoding="utf-8")
            for record in records:
                report.fill(page, report.section_of(record.suite, record.about), "")
        except (OSError, ValueError) as error:
            parser.error(f"--markdown: {error}")
    passed = True
    for record, names in zip(records, chosen.values(), strict=True):
        if not options.no_run:
            Run(record, options).measure(names)
            passed = passed and record.passed
        suite = SUITES[record.suite]
        print(f"\n## {record.suite}: {suite.description}\n\n{report.tables(record)}\n", flush=True)
        if options.markdown is not None:
            report.write_into(options.markdown, record)
        if options.picture is not None:
            print(f"picture: {picture.draw(record, options.picture)}")
    return 0 if passed else 1


def _choose(words: Sequence[str], parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """Return the suites, each with the measurements that follow it."""
    chosen: dict[str, list[str]] = {}
    for word in words:
        last = next(reversed(chosen), "")
        if last and word in SUITES[last].measurements:
            chosen[last].append(word)
        elif word in SUITES:
            chosen.setdefault(word, [])
        else:
            known = [*(SUITES[last].measurements if last else ()), *SUITES]
            parser.error(f"there is no suite or measurement {word!r}: {', '.join(known)}")
    return chosen


def _check(
    options: argparse.Namespace, chosen: dict[str, list[str]], parser: argparse.ArgumentParser
) -> None:
    has_rows = [name for name in chosen if SUITES[name].measurements]
    for name in _OF_CASES if has_rows else ():
        if getattr(options, name) not in ("", None, False):
            parser.error(f"--{name.replace('_', '-')} is for suites of cases, not {has_rows[0]}")
    if options.seconds is not None and len(has_rows) < len(chosen):
        parser.error("--seconds is for measurements that are no cases")
    if options.seconds is not None and not options.seconds > 0:
        parser.error(f"--seconds must be above 0, got {options.seconds:g}")
    if options.peers and not any(PEERS[name].is_heed for name in options.peers):
        parser.error("--peers must name a side of heed: the others are compared with it")
    for name, least in (("rounds", 2 if has_rows else 1), ("threads", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            parser.error(f"--{name} must be at least {least}, got {value}")
    if options.before is not None:
        options.before = _find_other_heed(options.before, parser)
    held_to = options.instruction_set
    if held_to is not None and not options.no_run and held_to not in instruction_sets():
        known = ", ".join(instruction_sets())
        parser.error(f"--instruction-set must be one of this machine's ({known}), got {held_to}")
    if held_to is not None and options.instruction_sets:
        parser.error("--instruction-set and --instruction-sets exclude each other")


def _find_other_heed(before: str, parser: argparse.ArgumentParser) -> str:
    """Return the path of an interpreter whose heed is not this one's."""
    python = shutil.which(before)
    if python is None:
        parser.error(f"--before must be a Python interpreter, got {before}")
    python = os.path.abspath(python)  # sides run in another folder
    code = "import importlib.util as u; s = u.find_spec('heed'); print(s.origin if s else '')"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=variables,
        cwd=processes.ROOT,
    )
    found = (done.stdout.splitlines() or [""])[-1]
    own = importlib.util.find_spec("heed")
    if not found or (own is not None and own.origin and Path(own.origin).samefile(found)):
        parser.error(f"--before must have a heed of its own, got {before} with {found or 'none'}")
    return python


def _parser() -> argparse.ArgumentParser:
    described = []
    for name, suite in SUITES.items():
        described.append(f"  {name:15} {suite.description}")
        if len(suite.measurements) > 1:
            described.append(f"  {'':15} ({', '.join(suite.measurements)})")
    suites = "\n".join(described)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"{__doc__}\n\nsuites, and what some of them measure:\n{suites}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "suites",
        nargs="+",
        metavar="SUITE",
        help="see above; a suite's measurements may follow it: 'backends torch jax'",
    )
    parser.add_argument(
        "--case", default="", metavar="TEXT", help="only cases whose names contain this: 'fwd (1'"
    )
    parser.add_argument(
        "--peers", nargs="+", choices=list(PEERS), metavar="PEER", help="only these: %(choices)s"
    )
    parser.add_argument(
        "--rounds", type=int, help="samples of each side (default: 25, fewer for slow suites)"
    )
    parser.add_argument(
        "--threads", type=int, default=2, help="threads of each side (default %(default)s)"
    )
    itself = parser.add_mutually_exclusive_group()
    itself.add_argument(
        "--before",
        metavar="PYTHON",
        help="compare heed with this interpreter's heed, such as that of the commit before",
    )
    itself.add_argument(
        "--instruction-sets",
        action="store_true",
        help="compare heed's own kernels for each instruction set that this machine has",
    )
    parser.add_argument(
        "--instruction-set",
        metavar="NAME",
        help="hold heed and all its peers to this one, such as avx2; the results go to SUITE-NAME.json",
    )
    parser.add_argument("--no-time", action="store_true", help="measure no time")
    parser.add_argument("--no-memory", action="store_true", help="measure no memory")
    parser.add_argument(
        "--seconds", type=float, help="end each measurement after so long, and keep its rows"
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path(__file__).parent / "results",
        metavar="FOLDER",
        help="folder of SUITE.json with all samples (default benchmarks/results)",
    )
    parser.add_argument("--update", action="store_true", help="keep the rest of SUITE.json")
    parser.add_argument("--no-run", action="store_true", help="measure nothing; read SUITE.json")
    parser.add_argument(
        "--markdown", type=Path, metavar="PAGE", help="write the tables into their place in PAGE"
    )
    parser.add_argument(
        "--picture", type=Path, metavar="PNG", help="plot time and memory over T (suite long)"
    )
    return parser


def _file(name: str, options: argparse.Namespace) -> Path:
    return options.results / f"{name_results(name, options.instruction_set)}.json"


def _read(name: str, options: argparse.Namespace) -> Record:
    return Record.read(_file(name, options))


class Run:
    """A run of one suite, which writes everything so far after each case and row: it may end any time.

    Args:
        record: its results, empty.
        options: the parsed arguments.
    """

    def __init__(self, record: Record, options: argparse.Namespace) -> None:
        self._record, self._options = record, options
        self._suite: Suite = SUITES[record.suite]
        self._file = _file(record.suite, options)
        self._rounds = options.rounds or self._suite.rounds
        self._machine = Machine(options.threads, environment(options.instruction_set))
        if options.update and self._file.exists():
            record.take_over(Record.read(self._file))

    def measure(self, names: Sequence[str]) -> None:
        """Measure the cases, and the measurements of these names, or else all."""
        if not self._options.no_time:
            self._measure_times()
        if not self._options.no_memory:
            self._measure_memory()
        for name in names or self._suite.measurements:
            self._measure_rows(name)

    def _sides(self, case: Case) -> dict[str, Peer]:
        options = self._options
        if options.before is not None or options.instruction_sets:
            return heeds_of(case, options.peers, options.before)
        return self._suite.peers_of(case, options.peers)

    def _cases(self, cases: Sequence[Case]) -> list[Case]:
        return [case for case in cases if self._options.case in case.name]

    def _measure_times(self) -> None:
        with Sides(self._machine.start) as started:
            for case in self._cases(self._suite.times):
                peers = self._sides(case)
                if any(peer.is_heed for peer in peers.values()):
                    found = processes.time_case(case, peers, self._rounds, started)
                    self._record.add("times", case, found)
                    self._save(f"{case.name}: {report.summarize(found)}")

    def _measure_memory(self) -> None:
        for case in self._cases(self._suite.memory):
            peers = {name: x for name, x in self._sides(case).items() if not x.is_limit}
            found = processes.measure_memory(case, peers, self._machine.start)
            self._record.add("memory", case, found)
            self._save(f"{case.name}: {report.summarize(found)}")

    def _measure_rows(self, name: str) -> None:
        measurement, before = self._suite.measurements[name], self._options.before
        pythons = [None] if before is None else [None, before]
        running = [self._machine.start_measurement(measurement, python) for python in pythons]
        try:
            for found in processes.measure_rows(
                measurement.target, self._rounds, running, self._options.seconds
            ):
                self._add(found)
        except UnavailableError as error:
            self._add(f"{name}: {error}")
        finally:
            for process in running:
                process.close()

    def _add(self, found: Row | str) -> None:
        if isinstance(found, Row):
            self._record.add_row(found)
            text = f"{found.name}: {found.value:.3g} {found.unit}; {found.note}"
        else:
            text = f"not measured: {found}"
            self._record.problems.append(text)
        self._save(text)

    def _save(self, text: Any) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)
        self._record.write(self._file)
        page = report.tables(self._record)
        self._file.with_suffix(".md").write_text(page + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
