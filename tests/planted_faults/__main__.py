"""`python -m tests.planted_faults`: plants each fault, runs the nearest tests, and lists the faults they missed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tests.planted_faults import registry
from tests.planted_faults.planting import ROOT, Outcome, try_faults


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every fault was noticed, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted_faults", description=__doc__)
    parser.add_argument("words", nargs="*", help="only faults with one of these in name or file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="copies at a time")
    parser.add_argument("--limit", type=float, default=900, help="seconds for the tests of one")
    parser.add_argument("--list", action="store_true", help="list the faults and plant none")
    options = parser.parse_args(arguments)
    faults = [
        fault
        for fault in registry.FAULTS
        if not options.words or any(word in f"{fault.name} {fault.file}" for word in options.words)
    ]
    if problems := [problem for fault in faults for problem in fault.problems(ROOT)]:
        print("\n".join(problems), file=sys.stderr)
        return 1
    if options.list:
        print("\n".join(f"{fault.file}: {fault.name}" for fault in faults))
        return 0

    def tell(outcome: Outcome) -> None:
        by = outcome.noticed_by or outcome.problem or ", ".join(outcome.fault.tests)
        print(
            f"{outcome.verdict:14}  {outcome.seconds:5.0f} s  {outcome.fault.name}  ({by})",
            flush=True,
        )

    outcomes = try_faults(
        faults, jobs=options.jobs, limit=options.limit, library=registry.library(), tell=tell
    )
    missed = [outcome for outcome in outcomes if not outcome.noticed_by]
    print(f"\n{len(outcomes) - len(missed)} of {len(outcomes)} faults were noticed")
    for outcome in missed:
        print(f"{outcome.verdict}: {outcome.fault.name}, {outcome.fault.file}", end="")
        print(f": {outcome.problem}" if outcome.problem else "")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
