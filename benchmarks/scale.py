"""Jobs of several processes on this machine against one process: `python -m benchmarks scale`.

Each measurement is a function in a file of its own that yields rows; `MEASUREMENTS` names them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.results import describe_environment

NAME, DESCRIPTION = "scale", "several processes on this machine against one"


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
    """

    name: str
    value: float
    bar: float | None = None
    at_most: bool = False
    unit: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the value reaches its bar; None without one."""
        if self.bar is None:
            return None
        return self.value <= self.bar if self.at_most else self.value >= self.bar


# Module and function of each measurement. The function takes nothing and yields rows.
MEASUREMENTS = {
    "ring": ("scale_ring", "memory_rows"),
    "training": ("scale_training", "measure"),
    "translate": ("scale_translate", "measure"),
}


def load(name: str) -> Callable[[], Iterable[Row]]:
    """Return the function of a measurement."""
    module, function = MEASUREMENTS[name]
    return getattr(importlib.import_module(f"benchmarks.{module}"), function)


def table(rows: Iterable[Row]) -> str:
    """Return the rows in Markdown."""
    lines = ["| | measured | bar | |", "| --- | ---: | ---: | --- |"]
    words = {True: "met", False: "missed", None: ""}
    for row in rows:
        bound = "" if row.bar is None else f"{'<=' if row.at_most else '>='} {row.bar:.3g}"
        value = f"{row.value:.3g} {row.unit}".strip()
        text = "; ".join(filter(None, [words[row.met], row.note]))
        lines.append(f"| {row.name} | {value} | {bound} | {text} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measures; the status is 0 if no bar is missed."""
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASUREMENTS))
    parser.add_argument(
        "--results", type=Path, default=Path(__file__).parent / "results", metavar="FOLDER"
    )
    options = parser.parse_args(words)
    for name in options.names:
        if name not in MEASUREMENTS:
            parser.error(f"there is no measurement {name!r}: {', '.join(MEASUREMENTS)}")
    rows: dict[str, list[Row]] = {}
    about = describe_environment(shlex.join(["python", "-m", "benchmarks", NAME, *words]), 1)
    for name in options.names or MEASUREMENTS:
        rows[name] = []
        for row in load(name)():
            rows[name].append(row)
            print(f"  {row.name}: {row.value:.3g} {row.unit}", file=sys.stderr, flush=True)
        record = {
            "suite": NAME,
            "about": about,
            "rows": {key: [asdict(row) for row in found] for key, found in rows.items()},
        }
        options.results.mkdir(parents=True, exist_ok=True)
        text = json.dumps(record, indent=1) + "\n"
        (options.results / f"{NAME}.json").write_text(text, encoding="utf-8")
    every = [row for found in rows.values() for row in found]
    print(f"\n## {NAME}: {DESCRIPTION}\n\n{table(every)}\n")
    return 1 if any(row.met is False for row in every) else 0
