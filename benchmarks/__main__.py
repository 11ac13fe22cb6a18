"""Time and memory of heed beside its peers, each side in a process of its own."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import shlex
import shutil
import sys
from pathlib import Path

from benchmarks import bars, picture, report
from benchmarks.cases import SUITES, Case, Suite
from benchmarks.measure import Side, Sides, memory_case, time_case
from benchmarks.peers import BEFORE, PEERS, WITH, Peer
from benchmarks.results import Record, about

ALL = {
    bars.NAME: bars.SUITE,
    bars.MODELS: bars.MODEL_SUITE,
    bars.SEQ2SEQ: bars.SEQ2SEQ_SUITE,
    **SUITES,
}
ROUNDS = 25


def main(arguments: list[str] | None = None) -> int:
    """Parses the arguments and runs suites."""
    options = _parser().parse_args(arguments)
    chosen = [name for name in options.peers or [] if PEERS[name].is_heed]
    if options.peers and not chosen:
        _parser().error("--peers must name a side of heed: the others are compared with it")
    for name in ("rounds", "threads"):
        if getattr(options, name) < 1:
            _parser().error(f"--{name} must be at least 1, got {getattr(options, name)}")
    if options.before is not None:
        python = shutil.which(options.before)
        if python is None:
            _parser().error(f"--before must be a Python interpreter, got {options.before}")
        options.before = os.path.abspath(python)  # sides run in another folder
    typed = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", "benchmarks", *typed])
    complete = True
    for name in options.suites:
        file = options.results / f"{name}.json"
        if options.no_run:
            record = Record.read(file)
        else:
            record = run(name, options, command, file)
            complete = complete and bool(record.timed or record.weighed)
        print(f"\n## {name}: {ALL[name].what}\n\n{report.tables(record)}\n", flush=True)
        if options.markdown is not None:
            report.write_into(options.markdown, record)
        if options.picture is not None:
            print(f"picture: {picture.draw(record, options.picture)}")
    return 0 if complete else 1


def _parser() -> argparse.ArgumentParser:
    suites = "\n".join(f"  {name:10} {suite.what}" for name, suite in ALL.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"{__doc__}\n\nsuites:\n{suites}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suites", nargs="+", choices=list(ALL), metavar="SUITE", help="see above")
    parser.add_argument("--case", default="", metavar="TEXT", help="only cases named so: 'fwd (1'")
    parser.add_argument(
        "--peers",
        nargs="+",
        choices=_named(),
        metavar="PEER",
        help="only these sides, of %(choices)s",
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="samples of each side (default %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=2, help="of each side (default %(default)s)")
    itself = parser.add_mutually_exclusive_group()
    itself.add_argument(
        "--before",
        metavar="PYTHON",
        help="heed beside the heed that this interpreter has, such as that of the commit before",
    )
    itself.add_argument(
        "--instruction-sets",
        action="store_true",
        help="heed beside itself with the kernels of each instruction set that this machine has",
    )
    parser.add_argument("--no-time", action="store_true", help="leave the timings out")
    parser.add_argument("--no-memory", action="store_true", help="leave the memory out")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path(__file__).parent / "results",
        metavar="FOLDER",
        help="where SUITE.json with all samples goes (default benchmarks/results)",
    )
    parser.add_argument(
        "--update", action="store_true", help="keep what SUITE.json has of other cases"
    )
    parser.add_argument("--no-run", action="store_true", help="measure nothing, read SUITE.json")
    parser.add_argument(
        "--markdown", type=Path, metavar="PAGE", help="put the tables into their place in PAGE"
    )
    parser.add_argument(
        "--picture", type=Path, metavar="PNG", help="draw time and memory over T (suite long)"
    )
    return parser


def run(name: str, options: argparse.Namespace, command: str, file: Path) -> Record:
    """Times and weighs the cases of a suite, and writes what is there after each.

    Args:
        name: of the suite.
        options: as parsed.
        command: what was typed.
        file: where the results go.
    """
    suite = ALL[name]
    record = Record(name, about(command, options.threads))
    if options.update and file.exists():
        record.continues(Record.read(file))
    start = functools.partial(Side, threads=options.threads)
    if not options.no_time:
        with Sides(start) as processes:
            for case in _wanted(suite.timed, options.case):
                peers = _sides(name, suite, case, options)
                if any(peer.is_heed for peer in peers.values()):
                    results = time_case(case, peers, options.rounds, processes)
                    record.add("timed", case, results)
                    _tell(case, report.in_short(results), record, file)
    if not options.no_memory:
        for case in _wanted(suite.weighed, options.case):
            peers = _sides(name, suite, case, options)
            peers = {name: peer for name, peer in peers.items() if not peer.is_limit}
            results = memory_case(case, peers, start)
            record.add("weighed", case, results)
            _tell(case, report.in_short(results), record, file)
    return record


def sides(
    name: str,
    suite: Suite,
    case: Case,
    chosen: list[str] | None,
    before: str | None = None,
    instruction_sets: bool = False,
) -> dict[str, Peer]:
    """Who computes a case of a suite: those chosen, or else those that the suite is about.

    With `before`, an interpreter, it is the side of heed and the same with that interpreter's heed; with
    `instruction_sets` the side of heed and the same with the kernels of each.
    """
    if before is not None or instruction_sets:
        return _heed_beside_heed(case, chosen, before)
    if chosen is not None:
        wanted: list[str] | tuple[str, ...] = chosen
    elif name == bars.NAME:
        wanted = bars.sides_of(case)
    elif suite.peers is not None:
        wanted = suite.peers
    else:
        wanted = [name for name in _named() if not PEERS[name].is_limit]
    return {name: peer for name, peer in PEERS.items() if name in wanted and peer.kind == case.kind}


def _heed_beside_heed(case: Case, chosen: list[str] | None, before: str | None) -> dict[str, Peer]:
    for name, peer in PEERS.items():
        if peer.is_heed and peer.kind == case.kind and (chosen is None or name in chosen):
            if before is None:
                same = {other: x for other, x in PEERS.items() if other.startswith(name + WITH)}
                return {name: peer, **same} if same else {}
            before_it = dataclasses.replace(PEERS[name + BEFORE], python=before)
            return {name: peer, name + BEFORE: before_it}
    return {}


def _named() -> list[str]:
    """The sides that a person may name, all but heed's own variants."""
    return [name for name, peer in PEERS.items() if not peer.is_variant]


def _sides(name: str, suite: Suite, case: Case, options: argparse.Namespace) -> dict[str, Peer]:
    return sides(name, suite, case, options.peers, options.before, options.instruction_sets)


def _wanted(cases: list[Case], text: str) -> list[Case]:
    return [case for case in cases if text in case.name]


def _tell(case: Case, figures: str, record: Record, file: Path) -> None:
    """Says what a case gave, as soon as it is done, and keeps it: a whole run takes long."""
    print(f"  {case.name}: {figures}", file=sys.stderr, flush=True)
    record.write(file)


if __name__ == "__main__":
    sys.exit(main())
