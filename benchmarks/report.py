"""Writes the tables of a run, and puts them into a page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks import bars
from benchmarks.bars import (
    BARS,
    MEMORY_BARS,
    MODEL_BARS,
    MODEL_MEMORY_BARS,
    SEQ2SEQ_BARS,
    Bar,
    Verdict,
    judge,
)
from benchmarks.peers import PEERS, REGISTER_PEAK
from benchmarks.results import Record, Result, Results, median

SHAPE = {
    "dot-product": "(B, N or N/K, T or T/S, H)",
    "additive": "(B, T, S, U)",
    "layer": "(B, N, T, H)",
    "model": "(B, N, T, H)",
    "generate": "(B, N, T/S, H)",
    "continue": "(B, N, T/S, H)",
    "language-model": "(B, N/K, T/S, H)",
}
SHARE = "share of peak"  # of the register peak
MARKS = {True: "yes", False: "**no**", None: "not measured"}


def tables(record: Record) -> str:
    """All tables of a run, and how it was made, in Markdown."""

    def on_machine(chosen: list[Bar]) -> list[Bar]:
        return [bar.on(record.about["instruction_set"]) for bar in chosen]

    has_variants = any(PEERS[name].is_variant for name in _names(record.times + record.memory))
    if record.suite == bars.NAME and not has_variants:
        parts = [bar_table(on_machine(BARS), record.times), memory_bar_table(record.memory)]
    elif record.suite == bars.SEQ2SEQ and not has_variants:
        parts = [bar_table(on_machine(SEQ2SEQ_BARS), record.times)]
    elif record.suite == bars.MODELS and not has_variants:
        parts = [model_table(record.times), model_memory_table(record.memory)]
    else:
        parts = []
        for kind, shape in SHAPE.items():
            times = [entry for entry in record.times if entry[0].kind == kind]
            memory = [entry for entry in record.memory if entry[0].kind == kind]
            parts += [time_table(times, shape)] if times else []
            parts += [memory_table(memory, shape)] if memory else []
    notes = _notes(record.times) + _notes(record.memory)
    return "\n\n".join([_heading(record.about), *parts, *notes, describe_run(record)])


def _heading(about: dict[str, Any]) -> str:
    """Return the instruction set, processor and commit of a run."""
    held = ", to which heed and its peers are held" if about["held_to"] else ""
    commit = f", commit {about['commit']}" if about["commit"] else ""
    return f"**{about['instruction_set']}**{held}: {about['processor']}{commit}"


def describe_run(record: Record) -> str:
    """Return the command, machine and versions, and how many samples were disturbed."""
    about = record.about
    total, aside, kept = record.samples()
    packages = [f"heed {about['heed']}" + (f" at {about['commit']}" if about["commit"] else "")]
    packages += [
        f"{name} {about.get(key, 'not installed')}"
        for name, key in (
            ("TensorFlow", "tensorflow"),
            ("Keras", "keras"),
            ("PyTorch", "torch"),
            ("JAX", "jax"),
            ("CTranslate2", "ctranslate2"),
            ("llama-cpp-python", "llama_cpp"),
            ("NumPy", "numpy"),
            ("Python", "python"),
        )
    ]
    samples = f" Of {total} samples, {aside} were set aside as disturbed" if total else ""
    if samples:
        samples += f"; {kept} others were disturbed but count.\n" if kept else ".\n"
    return (
        f"`{about['command']}` on {about['day']}; {about['processor']}, {about['cores']} cores, "
        f"{about['threads']} threads per side; heed's implementation: {about['implementation']} "
        f"({about['instruction_set']}); {_describe_peak(about['register_peak'])}; "
        f"{', '.join(packages)}.{samples}"
    ).rstrip("\n")


def _describe_peak(rates: dict[str, float] | str) -> str:
    if isinstance(rates, str):
        return f"register peak not measured: {rates}"
    each = [
        f"{rate:.0f} GF/s with {count} thread{'s' * (count != '1')}"
        for count, rate in rates.items()
    ]
    return f"register peak {', '.join(each)}"


def bar_table(chosen: list[Bar], times: Results) -> str:
    """For each bar heed's time, the peer's, their ratio, and whether the bar is met; and heed's share of the peak.

    A run of some cases (`--case`) has the bars of these.
    """
    header = ["case", "to beat", "heed, ms", "peer, ms", "ratio", "bar", "met"]
    by_case = dict(times)
    chosen = [bar for bar in chosen if bar.case in by_case]
    peaks = [_seconds(REGISTER_PEAK, by_case.get(bar.case, {})) for bar in chosen]
    header += [SHARE] if any(peaks) else []
    rows = []
    for bar, peak in zip(chosen, peaks, strict=True):
        verdict = judge(bar, times)
        rows.append(
            [
                bar.case.name,
                _to_beat(verdict),
                _milliseconds(verdict.heed),
                _milliseconds(verdict.seconds),
                _ratio(verdict.ratio),
                f"{bar.at_least:g}",
                MARKS[verdict.met],
                *([_share_of_peak(peak, verdict.heed)] if any(peaks) else []),
            ]
        )
    return _markdown(header, rows, texts=2)


def _share_of_peak(peak: float | None, heed: float | None) -> str:
    """Return the time of the products at the peak, as a share of heed's time; rounded down."""
    return f"{math.floor(100 * peak / heed)} %" if peak and heed else "-"


def _to_beat(verdict: Verdict) -> str:
    """Return the peer, with a remark if it computed another case."""
    names = [verdict.peer] if verdict.peer else list(verdict.bar.peers)
    title = " or ".join(PEERS[name].title for name in names)
    if all(PEERS[name].is_limit for name in verdict.bar.peers):
        return f"the {title if verdict.peer else title.partition(' of ')[0]}"
    peer = PEERS[names[0]]
    if peer.computes(verdict.bar.case) != verdict.bar.case:
        return f"{title}, all keys"
    return title


def memory_bar_table(memory: Results) -> str:
    """For each bar on memory, whether it is met."""
    by_case = dict(memory)
    rows = []
    for bar in MEMORY_BARS:
        own = by_case.get(bar.case, {}).get("heed", Result())
        met = None if own.added_mib is None else own.added_mib < bar.below
        cells = [bar.case.name, _mebibytes(own), f"below {bar.below:g}", MARKS[met]]
        rows.append(cells)
    return _markdown(["memory of case", "heed, MiB added", "bar", "met"], rows)


def model_table(times: Results) -> str:
    """For each bar on whole models, whether it is met, and the share of attention in the models' time."""
    own, peer, rest = bars.MODEL_SUITE.peers or ()
    header = ["model (B, N, T, H)", f"{PEERS[own].title}, ms", f"{PEERS[peer].title}, ms"]
    header += ["ratio", "bar", "met", "attention's share: accelerated", "stock"]
    by_case = dict(times)
    rows = []
    for bar in MODEL_BARS:
        verdict = judge(bar, times)
        without = _seconds(rest, by_case.get(bar.case, {}))
        rows.append(
            [
                bar.case.name,
                _milliseconds(verdict.heed),
                _milliseconds(verdict.seconds),
                _ratio(verdict.ratio),
                f"{bar.at_least:g}",
                MARKS[verdict.met],
                *(_share(without, whole) for whole in (verdict.heed, verdict.seconds)),
            ]
        )
    return _markdown(header, rows)


def _share(without: float | None, whole: float | None) -> str:
    return f"{max(0.0, 1 - without / whole):.0%}" if without and whole else "-"


def model_memory_table(memory: Results) -> str:
    """For each bar on the share of a peer's memory, whether it is met."""
    by_case = dict(memory)
    rows = []
    for bar in MODEL_MEMORY_BARS:
        sides = by_case.get(bar.case, {})
        own, peer = (sides.get(name, Result()) for name in ("heed-model", bar.peer))
        known = own.added_mib is not None and peer.added_mib is not None
        share = own.added_mib / peer.added_mib if known else None  # type: ignore[operator]
        met = None if share is None else share < bar.below
        # Rounded up, so that 0.49 means at most 0.49.
        rounded = "-" if share is None else f"{math.ceil(share * 100) / 100:.2f}"
        cells = [bar.case.name, _mebibytes(own), _mebibytes(peer), rounded]
        rows.append([*cells, f"below {bar.below:g}", MARKS[met]])
    header = [
        "memory of model",
        "accelerated, MiB added",
        "stock Keras, MiB",
        "share",
        "bar",
        "met",
    ]
    return _markdown(header, rows)


def time_table(results: Results, shape: str) -> str:
    """Milliseconds and share of the peak of heed, and of each peer with the ratio peer / heed, in Markdown."""
    own, *peers = sorted(_names(results), key=lambda name: not PEERS[name].is_heed)
    header = [f"time of {shape}", f"{PEERS[own].title}, ms"]
    has_peak = any(_seconds(REGISTER_PEAK, by_side) for _, by_side in results)
    header += [SHARE] if has_peak else []
    peers = [name for name in peers if name != REGISTER_PEAK]
    for name in peers:
        header += [f"{PEERS[name].title}, ms", "ratio"]
    rows = []
    for case, by_side in results:
        heed = _seconds(own, by_side)
        cells = [case.name, _milliseconds(heed)]
        cells += [_share_of_peak(_seconds(REGISTER_PEAK, by_side), heed)] if has_peak else []
        for name in peers:
            seconds = _seconds(name, by_side)
            mark = "*" if name in by_side and by_side[name].instead else ""
            cells += [
                _milliseconds(seconds) + mark,
                _ratio(seconds / heed if seconds and heed else None),
            ]
        rows.append(cells)
    return _markdown(header, rows)


def memory_table(results: Results, shape: str) -> str:
    """MiB that each side adds to its process beyond inputs and gradients, in Markdown."""
    names = _names(results)
    header = [f"memory of {shape}", *(f"{PEERS[name].title}, MiB" for name in names)]
    rows = [
        [case.name, *(_mebibytes(by_side.get(name, Result())) for name in names)]
        for case, by_side in results
    ]
    return _markdown(header, rows)


def summarize(by_side: dict[str, Result]) -> str:
    """Return the results of all sides of one case in one line."""
    figures = []
    for name, result in by_side.items():
        seconds = median(result, by_side)
        if result.added_mib is not None:
            figures.append(f"{name} {result.added_mib:.0f} MiB")
        else:
            figures.append(f"{name} {_milliseconds(seconds)}{' ms' if seconds else ''}")
    return ", ".join(figures)


def fill(page: str, name: str, text: str) -> str:
    """Put a suite's tables into a page, between the two lines that name the suite.

    Args:
        page: Markdown with `<!-- figures: NAME -->` and `<!-- end of figures: NAME -->`.
        name: the suite.
        text: the tables.

    Raises:
        ValueError: if the page does not have both lines, once each.
    """
    first, last = f"<!-- figures: {name} -->\n", f"<!-- end of figures: {name} -->"
    before, found, rest = page.partition(first)
    _, ended, after = rest.partition(last)
    if not found or not ended or first in after or last in after:
        raise ValueError(f"the page must have the lines {first.strip()} and {last} once each")
    return f"{before}{first}{text}\n{last}{after}"


def write_into(path: Path, record: Record) -> None:
    """Fill a file's section for the record's suite."""
    page = path.read_text(encoding="utf-8")
    path.write_text(fill(page, record.section, tables(record)), encoding="utf-8")


def _names(results: Results) -> list[str]:
    """Return the sides of all cases, in the order of `PEERS`."""
    known = {name for _, by_side in results for name in by_side}
    return [name for name in PEERS if name in known]


def _seconds(name: str, by_side: dict[str, Result]) -> float | None:
    return median(by_side[name], by_side) if name in by_side else None


def _notes(results: Results) -> list[str]:
    """Return a paragraph for each side that computed another case, or has no result."""
    lines: dict[str, list[str]] = {}
    for case, by_side in results:
        for name, result in by_side.items():
            title = PEERS[name].title
            if result.problem:
                lines.setdefault(f"{title}: {result.problem}", []).append(case.name)
            elif result.instead:
                text = f"\\* {title} cannot compute this; timed instead: {result.instead}"
                lines.setdefault(text, []).append(case.name)
    return [f"{text} [{'; '.join(cases)}]" for text, cases in lines.items()]


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.{2 if seconds >= 1e-4 else 4}f}"


def _mebibytes(result: Result) -> str:
    return f"{result.added_mib:.0f}" if result.added_mib is not None else "-"


def _ratio(ratio: float | None) -> str:
    """Return rounded down, so that 1.20 means at least 1.2."""
    return f"{math.floor(ratio * 100) / 100:.2f}" if ratio is not None else "-"


def _markdown(header: list[str], rows: list[list[str]], texts: int = 1) -> str:
    """Return a table whose first `texts` columns are left-aligned texts, and whose others are numbers."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: list[str]) -> str:
        padded = [
            cell.ljust(width) if column < texts else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * width for width in widths[:texts]]
    rule += ["-" * (width - 1) + ":" for width in widths[texts:]]
    return "\n".join([line(header), line(rule), *(line(row) for row in rows)])
