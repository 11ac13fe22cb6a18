"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import cases, report
from benchmarks.cases import Case
from benchmarks.measure import Result, memory_case, time_case
from benchmarks.peers import PEERS


def main(arguments: list[str] | None = None) -> int:
    """Parses the arguments and runs a suite."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    suites = parser.add_subparsers(dest="suite", required=True)
    ops = suites.add_parser("ops", help="attention against naive TensorFlow and stock Keras")
    ops.add_argument("--quick", action="store_true", help="one small shape and few rounds: a trial")
    ops.add_argument("--rounds", type=int, help="samples of each side (default 15, quick 3)")
    ops.add_argument(
        "--case", default="", metavar="TEXT", help='only cases named so, e.g. "fwd (1"'
    )
    ops.add_argument(
        "--peers",
        nargs="+",
        choices=list(PEERS),
        default=None,
        metavar="PEER",
        help=f"only these sides, of {', '.join(PEERS)}",
    )
    ops.add_argument("--no-time", action="store_true", help="leave the timings out")
    ops.add_argument("--no-memory", action="store_true", help="leave the memory out")
    ops.add_argument("--json", type=Path, metavar="FILE", help="write all samples to FILE")
    options = parser.parse_args(arguments)
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {options.rounds}")
    return run_ops(options)


def run_ops(options: argparse.Namespace) -> int:
    """Times and weighs attention, group by group, and prints the tables as they come."""
    about = report.machine()
    print(
        f"{about['processor']}, {about['cores']} cores; heed {about['heed']} "
        f"({about['implementation']}), keras {about['keras']}, tensorflow {about['tensorflow']}"
    )
    print("Ratios are peer's time / heed's time: above 1 heed is quicker.")
    chosen = options.peers or [
        name
        for name in PEERS
        if name != "heed-portable" or about["implementation"] != "portable"  # it is the same
    ]
    rounds = options.rounds or (3 if options.quick else 15)
    timed: report.Results = []
    memory: report.Results = []
    for group in dict.fromkeys(peer.group for peer in PEERS.values()):
        peers = {n: p for n, p in PEERS.items() if p.group == group and n in chosen}
        if not any(peer.is_heed for peer in peers.values()):
            continue
        if not options.no_time:
            wanted = _wanted(cases.QUICK if options.quick else cases.TIMED, options.case)
            results = [(case, _tell(case, time_case(case, peers, rounds))) for case in wanted]
            if results:
                print(f"\nTime of one {group}, milliseconds\n\n{report.time_table(results, peers)}")
            timed += results
        if not options.no_memory:
            wanted = _wanted(cases.QUICK_MEMORY if options.quick else cases.MEMORY, options.case)
            results = [(case, _tell(case, memory_case(case, peers))) for case in wanted]
            if results:
                print(
                    f"\nPeak memory added by one {group}, beyond its inputs\n\n"
                    f"{report.memory_table(results, peers)}"
                )
            memory += results
    if options.json is not None:
        text = json.dumps(report.as_json(timed, memory), indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
        print(f"\nwritten: {options.json}")
    return 0 if timed or memory else 1


def _wanted(all_cases: list[Case], text: str) -> list[Case]:
    return [case for case in all_cases if text in case.name]


def _tell(case: Case, results: dict[str, Result]) -> dict[str, Result]:
    """Says on standard error what a case gave, as soon as it is done: a whole run takes minutes."""
    print(f"  {case.name}: {report.in_short(results)}", file=sys.stderr, flush=True)
    return results


if __name__ == "__main__":
    sys.exit(main())
