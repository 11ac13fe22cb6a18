"""Plots the time and memory of a run over the length of the sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.peers import named
from benchmarks.results import Record

# Okabe and Ito's colours, which colour-blind people can distinguish; the markers differ too.
STYLES = {
    "heed": ("#0072B2", "o", "-"),
    "heed-portable": ("#56B4E9", "s", "--"),
    "torch": ("#D55E00", "^", "-"),
    "jax": ("#009E73", "D", "-"),
    "naive": ("#000000", "v", "-"),
}
Lines = dict[str, list[tuple[int, float]]]


def draw(record: Record, path: Path) -> None:
    """Plot a run of the suite `long`, whose cases differ in T alone, on logarithmic axes: time left, memory right."""
    from matplotlib.figure import Figure

    times: Lines = {}
    memory: Lines = {}
    for case, by_side in record.times:
        for name, result in by_side.items():
            if result.seconds is not None:
                times.setdefault(name, []).append((case.length, 1e3 * result.seconds))
    for case, by_side in record.memory:
        for name, result in by_side.items():
            if result.added_mib is not None:  # a logarithmic axis has no 0
                memory.setdefault(name, []).append((case.length, max(result.added_mib, 0.5)))
    case, about = record.times[0][0], record.about
    canvas = Figure(figsize=(11, 5.2), layout="constrained", dpi=150)
    left, right = canvas.subplots(1, 2)
    canvas.suptitle(
        f"Forward and backward: B = {case.batch}, N = {case.heads}, H = {case.head_dim}, {case.dtype}",
        fontsize=13,
        fontweight="bold",
    )
    _plot(left, times, "Time of a call, milliseconds")
    _plot(right, memory, "Peak memory beyond inputs and gradients, MiB")
    left.legend(loc="upper left", frameon=False)
    canvas.supxlabel(
        f"{about['processor']}, {about['threads']} threads, {about['day']}; "
        "a line ends if the side needs more memory than the machine has",
        fontsize=8,
        color="#555555",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path)


def _plot(axes: Any, lines: Lines, label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for name, points in lines.items():
        colour, marker, dashes = STYLES.get(name, ("#999999", "x", "-"))
        is_heed = name == "heed"
        axes.plot(
            *zip(*sorted(points), strict=True),
            dashes,
            color=colour,
            marker=marker,
            markersize=6,
            linewidth=2.6 if is_heed else 1.5,
            zorder=3 if is_heed else 2,
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
