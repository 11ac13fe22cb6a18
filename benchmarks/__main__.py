"""Compares heed's time and memory with its peers', each side in its own process."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import shlex
import shutil
import sys
from pathlib import Path

from benchmarks import (
    backends,
    bars,
    gpu,
    language_models,
    patching,
    picture,
    report,
    scale,
    score_mods,
    tune,
)
from benchmarks.cases import SUITES, Case, Suite
from benchmarks.instruction_sets import environment
from benchmarks.measure import Side, Sides, measure_memory, time_case
from benchmarks.peers import BEFORE, PEERS, REGISTER_PEAK, WITH, Peer, instruction_sets
from benchmarks.results import Record, describe_environment, name_results

ALL = {
    bars.NAME: bars.SUITE,
    bars.MODELS: bars.MODEL_SUITE,
    bars.SEQ2SEQ: bars.SEQ2SEQ_SUITE,
    **SUITES,
}
COMPARISONS = (
    backends.SUITE,
    gpu.SUITE,
    language_models.SUITE,
    patching.SUITE,
    score_mods.SUITE,
)
ROUNDS = 25


def main(arguments: list[str] | None = None) -> int:
    """Parse the arguments and run suites, or a comparison, `scale` or `tune`, which have options of their own."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == [scale.NAME]:  # jobs of several processes: no peers, no cases
        return scale.main(arguments[1:])
    for suite in COMPARISONS:  # sides in one process
        if arguments[:1] == [suite.name]:
            return suite.main(arguments[1:])
    if arguments[:1] == ["tune"]:
        return tune.main(arguments[1:])
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
    held_to = options.instruction_set
    if held_to is not None and not options.no_run and held_to not in instruction_sets():
        _parser().error(
            f"--instruction-set must be one of this machine's ({', '.join(instruction_sets())}), got {held_to}"
        )
    if held_to is not None and options.instruction_sets:
        _parser().error("--instruction-set and --instruction-sets exclude each other")
    command = shlex.join(["python", "-m", "benchmarks", *arguments])
    complete = True
    for name in options.suites:
        file = options.results / f"{name_results(name, held_to)}.json"
        if options.no_run:
            record = Record.read(file)
        else:
            record = run(name, options, command, file)
            complete = complete and bool(record.times or record.memory)
        print(f"\n## {name}: {ALL[name].description}\n\n{report.tables(record)}\n", flush=True)
        if options.markdown is not None:
            report.write_into(options.markdown, record)
        if options.picture is not None:
            print(f"picture: {picture.draw(record, options.picture)}")
    return 0 if complete else 1


def _parser() -> argparse.ArgumentParser:
    described = {name: suite.description for name, suite in ALL.items()}
    others = {suite.name: suite.description for suite in COMPARISONS}
    for name, text in {**others, scale.NAME: scale.DESCRIPTION}.items():
        described[name] = f"{text} (own options: {name} --help)"
    suites = "\n".join(f"  {name:10} {text}" for name, text in described.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"{__doc__}\n\nsuites:\n{suites}\n\n"
        "python -m benchmarks tune --help: block sizes of the kernels",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suites", nargs="+", choices=list(ALL), metavar="SUITE", help="see above")
    parser.add_argument(
        "--case", default="", metavar="TEXT", help="only cases whose names contain this: 'fwd (1'"
    )
    parser.add_argument(
        "--peers",
        nargs="+",
        choices=_public_sides(),
        metavar="PEER",
        help="only these sides; known: %(choices)s",
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="samples of each side (default %(default)s)"
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
        "--results",
        type=Path,
        default=Path(__file__).parent / "results",
        metavar="FOLDER",
        help="folder of SUITE.json with all samples (default benchmarks/results)",
    )
    parser.add_argument("--update", action="store_true", help="keep the other cases of SUITE.json")
    parser.add_argument("--no-run", action="store_true", help="measure nothing; read SUITE.json")
    parser.add_argument(
        "--markdown", type=Path, metavar="PAGE", help="write the tables into their place in PAGE"
    )
    parser.add_argument(
        "--picture", type=Path, metavar="PNG", help="plot time and memory over T (suite long)"
    )
    return parser


def run(name: str, options: argparse.Namespace, command: str, file: Path) -> Record:
    """Measures the cases of a suite, and writes the results after each.

    Args:
        name: the suite.
        options: the parsed arguments.
        command: the command as the user typed it.
        file: the file of the results.
    """
    suite = ALL[name]
    record = Record(name, describe_environment(command, options.threads, options.instruction_set))
    if options.update and file.exists():
        record.take_over(Record.read(file))
    limits = environment(options.instruction_set)
    start = functools.partial(Side, threads=options.threads, limits=limits)
    if not options.no_time:
        with Sides(start) as processes:
            for case in _select(suite.times, options.case):
                peers = _options_sides(name, suite, case, options)
                if any(peer.is_heed for peer in peers.values()):
                    results = time_case(case, peers, options.rounds, processes)
                    record.add("times", case, results)
                    _save(case, report.summarize(results), record, file)
    if not options.no_memory:
        for case in _select(suite.memory, options.case):
            peers = _options_sides(name, suite, case, options)
            peers = {name: peer for name, peer in peers.items() if not peer.is_limit}
            results = measure_memory(case, peers, start)
            record.add("memory", case, results)
            _save(case, report.summarize(results), record, file)
    return record


def choose_sides(
    name: str,
    suite: Suite,
    case: Case,
    chosen: list[str] | None,
    before: str | None = None,
    instruction_sets: bool = False,
) -> dict[str, Peer]:
    """Return the sides that compute a case of a suite: the chosen ones, or else the suite's own and the register peak.

    With `before`, an interpreter, they are heed's side and the same with that interpreter's heed; with
    `instruction_sets`, heed's side and the same with the kernels for each.
    """
    if before is not None or instruction_sets:
        return _heed_variants(case, chosen, before)
    if chosen is not None:
        wanted: list[str] | tuple[str, ...] = chosen
    elif name == bars.NAME:
        wanted = bars.sides_of(case)
    elif suite.peers is not None:
        wanted = suite.peers
    else:
        wanted = [name for name in _public_sides() if not PEERS[name].is_limit]
    if chosen is None and case.has_register_peak:
        wanted = [*wanted, REGISTER_PEAK]
    return {name: peer for name, peer in PEERS.items() if name in wanted and peer.kind == case.kind}


def _heed_variants(case: Case, chosen: list[str] | None, before: str | None) -> dict[str, Peer]:
    for name, peer in PEERS.items():
        if peer.is_heed and peer.kind == case.kind and (chosen is None or name in chosen):
            if before is None:
                variants = {key: x for key, x in PEERS.items() if key.startswith(name + WITH)}
                return {name: peer, **variants} if variants else {}
            variant = dataclasses.replace(PEERS[name + BEFORE], python=before)
            return {name: peer, name + BEFORE: variant}
    return {}


def _public_sides() -> list[str]:
    """Return the sides that --peers takes: all but heed's own variants."""
    return [name for name, peer in PEERS.items() if not peer.is_variant]


def _options_sides(
    name: str, suite: Suite, case: Case, options: argparse.Namespace
) -> dict[str, Peer]:
    return choose_sides(name, suite, case, options.peers, options.before, options.instruction_sets)


def _select(cases: list[Case], text: str) -> list[Case]:
    return [case for case in cases if text in case.name]


def _save(case: Case, figures: str, record: Record, file: Path) -> None:
    """Print and save the results of a case at once, because a whole run takes long."""
    print(f"  {case.name}: {figures}", file=sys.stderr, flush=True)
    record.write(file)


if __name__ == "__main__":
    sys.exit(main())
