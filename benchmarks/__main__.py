"""Measures heed beside its peers: cases, each side in a process of its own, and rows of other measurements."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import picture, processes, report
from benchmarks.cases import Case
from benchmarks.instruction_sets import environment
from benchmarks.peers import PEERS, Peer
from benchmarks.processes import Machine, Sides, UnavailableError
from benchmarks.results import Record, Row, describe_environment, name_results
from benchmarks.suites import SUITES, Suite, heeds_of

# Options of suites of cases only.
_OF_CASES = ("case", "peers", "no_time", "no_memory", "picture")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the status is 0 if something was measured, nothing failed, and no row misses its bar."""
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    parser = _parser()
    options = parser.parse_args(words)
    chosen = _choose(options.suites, parser)
    _check(options, chosen, parser)
    if options.no_run:
        records = [Record.read(_file(name, options)) for name in chosen]
    else:
        command = shlex.join(["python", "-m", "benchmarks", *words])
        held_to = options.instruction_set
        about = describe_environment(command, options.threads, held_to)
        if held_to not in (None, about["instruction_set"]):
            parser.error(f"--instruction-set must be one of this machine's, got {held_to}")
        records = [Record(name, {**about}) for name in chosen]
    if options.markdown is not None:  # before the minutes of measuring
        try:
            for record in records:
                report.fill(options.markdown.read_text(encoding="utf-8"), record, "")
        except (OSError, ValueError) as error:
            parser.error(f"--markdown: {error}")
    passed = True
    for record, names in zip(records, chosen.values(), strict=True):
        if not options.no_run:
            Run(record, options).measure(names)
            passed = passed and record.passed
        found = report.tables(record)
        print(f"\n## {record.suite}: {SUITES[record.suite].description}\n\n{found}\n", flush=True)
        if options.markdown is not None:
            page = options.markdown.read_text(encoding="utf-8")
            options.markdown.write_text(report.fill(page, record, found), encoding="utf-8")
        if options.picture is not None:
            picture.draw(record, options.picture)
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
    """End with an error for options that do not go together, or not on this machine."""
    has_rows = [name for name in chosen if SUITES[name].measurements]
    for name in _OF_CASES if has_rows else ():
        if getattr(options, name) not in ("", None, False):
            parser.error(f"--{name.replace('_', '-')} is for suites of cases, not {has_rows[0]}")
    if options.seconds is not None and len(has_rows) < len(chosen):
        parser.error("--seconds is for measurements that are no cases")
    if options.peers and not any(PEERS[name].is_heed for name in options.peers):
        parser.error("--peers must name a side of heed: the others are compared with it")
    for name in ("rounds", "threads", "seconds"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            parser.error(f"--{name} must be above 0, got {value:g}")
    if has_rows and options.rounds == 1:
        parser.error("--rounds must be at least 2 for measurements that are no cases")
    if options.before is not None:
        options.before = _find_other_heed(options.before, parser)


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
    add = parser.add_argument
    each = "see above; a suite's measurements may follow it: 'backends torch jax'"
    add("suites", nargs="+", metavar="SUITE", help=each)
    add("--case", default="", metavar="TEXT", help="only cases whose names contain this: 'fwd (1'")
    add("--peers", nargs="+", choices=[*PEERS], metavar="PEER", help="only these: %(choices)s")
    rounds = "samples of each side (default: 25, fewer for slow suites)"
    add("--rounds", type=int, help=rounds)
    add("--threads", type=int, default=2, help="of each side (default %(default)s)")
    before = "compare heed with this interpreter's heed, such as that of the commit before"
    add("--before", metavar="PYTHON", help=before)
    held_to = "hold heed and all its peers to this one, such as avx2; results go to SUITE-NAME.json"
    add("--instruction-set", metavar="NAME", help=held_to)
    add("--no-time", action="store_true", help="measure no time")
    add("--no-memory", action="store_true", help="measure no memory")
    seconds = "end each measurement after so long, and keep its rows"
    add("--seconds", type=float, help=seconds)
    results = "folder of SUITE.json with all samples (default benchmarks/results)"
    folder = Path(__file__).parent / "results"
    add("--results", type=Path, default=folder, metavar="FOLDER", help=results)
    add("--update", action="store_true", help="keep the rest of SUITE.json")
    add("--no-run", action="store_true", help="measure nothing; read SUITE.json")
    markdown = "write the tables into their place in PAGE"
    add("--markdown", type=Path, metavar="PAGE", help=markdown)
    plot = "plot time and memory over T (suite long)"
    add("--picture", type=Path, metavar="PNG", help=plot)
    return parser


def _file(name: str, options: argparse.Namespace) -> Path:
    return options.results / f"{name_results(name, options.instruction_set)}.json"


class Run:
    """A run of one suite, which writes everything so far after each case and row: it may end any time."""

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
        if options.before is not None:
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
        measurement, options = self._suite.measurements[name], self._options
        with contextlib.ExitStack() as stack:
            running = [
                stack.enter_context(self._machine.start_measurement(measurement, python))
                for python in ([None] if options.before is None else [None, options.before])
            ]
            try:
                for found in processes.measure_rows(
                    measurement.target, self._rounds, running, options.seconds
                ):
                    self._add(found)
            except UnavailableError as error:
                self._add(f"{name}: {error}")

    def _add(self, found: Row | str) -> None:
        if isinstance(found, Row):
            self._record.add_row(found)
            text = f"{found.name}: {found.value:.3g} {found.unit}; {found.note}"
        else:
            text = f"not measured: {found}"
            self._record.problems.append(text)
        self._save(text)

    def _save(self, text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)
        self._record.write(self._file)
        page = report.tables(self._record)
        self._file.with_suffix(".md").write_text(page + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
