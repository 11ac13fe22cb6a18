"""Plots the time and memory of a run over the length of the sequence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers import named
from benchmarks.results import Record, Result, Results, median

# Okabe and Ito's colours, which colour-blind people can distinguish; the markers differ too.
STYLES = {
    "heed": ("#0072B2", "o", "-"),
    "heed-portable": ("#56B4E9", "s", "--"),
    "torch": ("#D55E00", "^", "-"),
    "jax": ("#009E73", "D", "-"),
    "naive": ("#000000", "v", "-"),
    "keras-op": ("#E69F00", "P", "-"),
}


def draw(record: Record, path: Path) -> Path:
    """Write `figure(record)` as a PNG file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure(record).savefig(path)
    return path


def figure(record: Record) -> Any:
    """Plot a line for each side over T, on logarithmic axes: time on the left, memory on the right.

    Args:
        record: a run of cases that differ only in T.

    Raises:
        ValueError: if the cases differ in more than T, or there are fewer than two.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    about = record.about
    case = _common_case(record)
    canvas = Figure(figsize=(11, 5.2), layout="constrained", dpi=150)
    FigureCanvasAgg(canvas)
    left, right = canvas.subplots(1, 2)
    kind = "Forward and backward" if case.backward else "Forward"
    canvas.suptitle(
        f"{kind}{', causal' if case.causal else ''}: B = {case.batch}, N = {case.heads}, "
        f"H = {case.head_dim}, {case.dtype}",
        fontsize=13,
        fontweight="bold",
    )
    _plot(left, _lines(record.times, _milliseconds), "Time of a call, milliseconds")
    _plot(right, _lines(record.memory, _mebibytes), "Peak memory beyond inputs and gradients, MiB")
    left.legend(loc="upper left", frameon=False)
    results = [result for _, by_side in record.times for result in by_side.values()]
    too_large = any(result.problem and "GiB of memory" in result.problem for result in results)
    ends = "; a line ends if the side needs more memory than the machine has"
    canvas.supxlabel(
        f"{about['processor']}, {about['threads']} threads, {about['day']}{ends if too_large else ''}",
        fontsize=8,
        color="#555555",
    )
    return canvas


Lines = dict[str, list[tuple[int, float]]]


def _common_case(record: Record) -> Any:
    """Return the first of the cases, which differ only in T."""
    cases = [case for case, _ in [*record.times, *record.memory]]
    kinds = {tuple({**case.to_dict(), "length": 0}.items()) for case in cases}
    if len(kinds) != 1 or len({case.length for case in cases}) < 2:
        raise ValueError(
            "a picture needs cases of several lengths that differ in nothing else; "
            f"the suite is {record.suite!r}"
        )
    return cases[0]


def _lines(
    results: Results, value_of: Callable[[Result, dict[str, Result]], float | None]
) -> Lines:
    lines: Lines = {}
    for case, by_side in results:
        for name, result in by_side.items():
            value = value_of(result, by_side)
            if value is not None:
                lines.setdefault(name, []).append((case.length, value))
    return lines


def _milliseconds(result: Result, by_side: dict[str, Result]) -> float | None:
    seconds = median(result, by_side)
    return None if seconds is None else seconds * 1e3


def _mebibytes(result: Result, _: dict[str, Result]) -> float | None:
    # A logarithmic axis has no 0.
    return None if result.added_mib is None else max(result.added_mib, 0.5)


def _plot(axes: Any, lines: Lines, label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for name, points in lines.items():
        colour, marker, dashes = STYLES.get(name, ("#999999", "x", "-"))
        points = sorted(points)
        axes.plot(
            [length for length, _ in points],
            [value for _, value in points],
            dashes,
            color=colour,
            marker=marker,
            markersize=6,
            linewidth=2.6 if name == "heed" else 1.5,
            zorder=3 if name == "heed" else 2,
            label=named(name).title,
        )
    lengths = sorted({length for points in lines.values() for length, _ in points})
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.minorticks_off()
    axes.set_xlabel("sequence length T = S")
    axes.set_title(label, fontsize=10, loc="left")
    axes.grid(True, which="major", color="#DDDDDD", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
