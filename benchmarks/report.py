"""The tables, and the same as JSON."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

from benchmarks.cases import Case
from benchmarks.measure import Result, median
from benchmarks.peers import Peer
from heed import info

Results = list[tuple[Case, dict[str, Result]]]


def machine() -> dict[str, Any]:
    """What it ran on: processor, cores and versions."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        model = found.group(1) if found else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"processor": model, "cores": cores, **info()}


def time_table(results: Results, peers: dict[str, Peer]) -> str:
    """Milliseconds of heed, and of each peer with the ratio peer / heed. Markdown."""
    heed = next(name for name, peer in peers.items() if peer.is_heed)
    others = [name for name in peers if name != heed]
    rows = []
    for case, by_side in results:
        own = median(by_side[heed], by_side)
        cells = [case.name, _milliseconds(own)]
        for name in others:
            seconds = median(by_side[name], by_side)
            cells.append(_milliseconds(seconds))
            cells.append(f"{seconds / own:.2f}" if seconds and own else "-")
        rows.append(cells)
    header = ["case (B, N, T, H)", f"{peers[heed].title}, ms"]
    for name in others:
        header += [f"{peers[name].title}, ms", "ratio"]
    return _markdown(header, rows) + _problems(results, peers)


def memory_table(results: Results, peers: dict[str, Peer]) -> str:
    """MiB that each side adds to its process beyond the inputs. Markdown."""
    rows = []
    for case, by_side in results:
        cells = [case.name]
        for name in peers:
            added = by_side[name].added_mib
            cells.append(f"{added:.0f}" if added is not None else "failed")
        rows.append(cells)
    header = ["case (B, N, T, H)", *(f"{peer.title}, MiB added" for peer in peers.values())]
    return _markdown(header, rows) + _problems(results, peers)


def in_short(results: dict[str, Result]) -> str:
    """All sides of one case in one line."""
    figures = []
    for name, result in results.items():
        seconds = median(result, results)
        if result.added_mib is not None:
            figures.append(f"{name} {result.added_mib:.0f} MiB")
        else:
            figures.append(f"{name} {_milliseconds(seconds)}{' ms' if seconds else ''}")
    return ", ".join(figures)


def as_json(timed: Results, memory: Results) -> dict[str, Any]:
    """Everything, with each sample."""
    return {
        "machine": machine(),
        "timed": [_case_json(case, by_side) for case, by_side in timed],
        "memory": [_case_json(case, by_side) for case, by_side in memory],
    }


def _case_json(case: Case, by_side: dict[str, Result]) -> dict[str, Any]:
    sides = {}
    for name, result in by_side.items():
        sides[name] = {
            "median_seconds": median(result, by_side),
            "samples": result.samples,
            "probes": result.probes,
            "added_mib": result.added_mib,
            "problem": result.problem,
        }
    return {"case": case.to_dict(), "sides": sides}


def _problems(results: Results, peers: dict[str, Peer]) -> str:
    """One line for each side that has no figure, below a table."""
    lines = [
        f"{peers[name].title}, {case.name}: {result.problem}"
        for case, by_side in results
        for name, result in by_side.items()
        if result.problem
    ]
    return "".join(f"\n\n{line}" for line in lines)


def _milliseconds(seconds: float | None) -> str:
    return f"{seconds * 1e3:.2f}" if seconds is not None else "failed"


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: list[str]) -> str:
        first = cells[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return "| " + " | ".join([first, *rest]) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(header), line(rule), *(line(row) for row in rows)])
