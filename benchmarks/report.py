"""Writes the tables of a run, and puts them into a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import PEERS, REGISTER_PEAK, named
from benchmarks.results import Record, Result, Results, Row, median, name_results
from benchmarks.suites import OWN, SUITES, Bar, MemoryBar

SHAPE = {
    "dot-product": "(B, N or N/K, T or T/S, H)",
    "additive": "(B, T, S, U)",
    "layer": "(B, N, T, H)",
    "model": "(B, N, T, H)",
    "generate": "(B, N, T/S, H)",
    "continue": "(B, N, T/S, H)",
    "training": "(B, N, T/S, H)",
}
SHARE = "share of peak"  # of the register peak
MARKS = {True: "yes", False: "**no**", None: "not measured"}


@dataclass(frozen=True)
class Verdict:
    """The result of a bar; None for values that were not measured.

    Args:
        bar: the bar.
        heed: heed's seconds.
        peer: the fastest peer.
        seconds: the fastest peer's seconds.
    """

    bar: Bar
    heed: float | None
    peer: str | None
    seconds: float | None

    @property
    def ratio(self) -> float | None:
        """Peer's time / heed's time."""
        return self.seconds / self.heed if self.seconds and self.heed else None

    @property
    def met(self) -> bool | None:
        """Whether the ratio reaches the bar."""
        return None if self.ratio is None else self.ratio >= self.bar.at_least


def judge(bar: Bar, times: Results) -> Verdict:
    """Compare measured times with a bar."""
    by_side = dict(times).get(bar.case, {})
    known = {name: found for name in bar.peers if (found := _seconds(name, by_side)) is not None}
    fastest = min(known, key=lambda name: known[name], default=None)
    return Verdict(bar, _seconds(OWN[bar.case.kind], by_side), fastest, known.get(fastest or ""))


def section_of(suite: str, about: dict[str, Any]) -> str:
    """Return the name of a run's section in a page."""
    in_use = about["instruction_set"]
    return name_results(suite, in_use if in_use in SUITES[suite].sections else about["held_to"])


def tables(record: Record) -> str:
    """Return all tables of a run, and how it was made, in Markdown."""
    suite = SUITES[record.suite]
    compares_heeds = any(named(name).is_variant for name in _names([*record.times, *record.memory]))
    parts = []
    if suite.bars and not compares_heeds:
        bars = [bar.on(record.about["instruction_set"]) for bar in suite.bars]
        parts += [bar_table(bars, record.times)] if record.times else []
        parts += [memory_bar_table(suite.memory_bars, record.memory)] if record.memory else []
    else:
        for kind, shape in SHAPE.items():
            times = [entry for entry in record.times if entry[0].kind == kind]
            memory = [entry for entry in record.memory if entry[0].kind == kind]
            parts += [time_table(times, shape)] if times else []
            parts += [memory_table(memory, shape)] if memory else []
    parts += [row_table(record.rows)] if record.rows else []
    notes = _notes(record.times) + _notes(record.memory)
    return "\n\n".join(
        [_heading(record.about), *parts, *record.problems, *notes, describe_run(record)]
    )


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
        samples += f"; {kept} others were disturbed but count." if kept else "."
    note = SUITES[record.suite].note
    gpu = f"{about['gpu']}; " if about.get("gpu") else ""
    return (
        f"`{about['command']}` on {about['day']}; {gpu}{about['processor']}, {about['cores']} cores, "
        f"{about['threads']} threads per side; heed's implementation: {about['implementation']} "
        f"({about['instruction_set']}); {_describe_peak(about['register_peak'])}; "
        f"{', '.join(packages)}.{samples}{f' {note}.' if note else ''}"
    )


def _describe_peak(rates: dict[str, float] | str) -> str:
    if isinstance(rates, str):
        return f"register peak not measured: {rates}"
    each = [
        f"{rate:.0f} GF/s with {count} thread{'s' * (count != '1')}"
        for count, rate in rates.items()
    ]
    return f"register peak {', '.join(each)}"


def row_table(rows: Sequence[Row]) -> str:
    """Return figures of measurements with their bars; beside another heed's, if there are any."""
    two = any(row.before for row in rows)
    head = ["", "measured", *(["before", "heed's time before / now"] if two else []), "bar", ""]
    lines = [head, ["---", *["---:"] * (len(head) - 2), "---"]]
    words = {True: "met", False: "missed", None: ""}
    for row in rows:
        bound = "" if row.bar is None else f"{'<=' if row.at_most else '>='} {row.bar:.3g}"
        line = [row.name, f"{row.value:.3g} {row.unit}".strip()]
        if two:
            value, seconds = row.before or (None, None)
            line.append("" if value is None else f"{value:.3g}")
            line.append(_ratio(seconds / row.seconds) if seconds and row.seconds else "")
        lines.append([*line, bound, "; ".join(filter(None, [words[row.met], row.note]))])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bar_table(chosen: Sequence[Bar], times: Results) -> str:
    """For each bar heed's time, the peer's, their ratio, and whether the bar is met.

    Beside these heed's share of the register peak, and the share of attention in the time of whole models. A run of
    some cases (`--case`) has the bars of these.
    """
    header = ["case", "to beat", "heed, ms", "peer, ms", "ratio", "bar", "met"]
    by_case = dict(times)
    verdicts = [judge(bar, times) for bar in chosen if bar.case in by_case]
    sides = [by_case[verdict.bar.case] for verdict in verdicts]
    peaks, rests = (
        [_seconds(name, each) for each in sides] for name in (REGISTER_PEAK, "model-rest")
    )
    header += [SHARE] if any(peaks) else []
    header += ["attention's share: heed", "peer"] if any(rests) else []
    rows = []
    for verdict, peak, rest in zip(verdicts, peaks, rests, strict=True):
        row = [verdict.bar.case.name, _to_beat(verdict)]
        row += [_milliseconds(verdict.heed), _milliseconds(verdict.seconds)]
        row += [_ratio(verdict.ratio), f"{verdict.bar.at_least:g}", MARKS[verdict.met]]
        row += [_share_of_peak(peak, verdict.heed)] if any(peaks) else []
        if any(rests):
            row += [_share(rest, verdict.heed), _share(rest, verdict.seconds)]
        rows.append(row)
    return _markdown(header, rows, texts=2)


def _share_of_peak(peak: float | None, heed: float | None) -> str:
    """Return the time of the products at the peak, as a share of heed's time; rounded down."""
    return f"{math.floor(100 * peak / heed)} %" if peak and heed else "-"


def _share(without: float | None, whole: float | None) -> str:
    return f"{max(0.0, 1 - without / whole):.0%}" if without and whole else "-"


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


def memory_bar_table(bars: Sequence[MemoryBar], memory: Results) -> str:
    """For each bar on memory, or on its share of a peer's, whether it is met."""
    by_case, rows = dict(memory), []
    shares = any(bar.peer for bar in bars)
    for bar in bars:
        sides = by_case.get(bar.case, {})
        own = sides.get(OWN[bar.case.kind], Result())
        peer = sides.get(bar.peer or "", Result())
        value, cells = own.added_mib, [bar.case.name, _mebibytes(own)]
        if shares:
            known = own.added_mib is not None and peer.added_mib
            value = own.added_mib / peer.added_mib if known else None  # type: ignore[operator]
            # Rounded up, so that 0.49 means at most 0.49.
            rounded = "-" if value is None else f"{math.ceil(value * 100) / 100:.2f}"
            cells += [_mebibytes(peer), rounded]
        met = None if value is None else value < bar.below
        rows.append([*cells, f"below {bar.below:g}", MARKS[met]])
    middle = ["peer, MiB", "share"] if shares else []
    return _markdown(["memory of case", "heed, MiB added", *middle, "bar", "met"], rows)


def time_table(results: Results, shape: str) -> str:
    """Return milliseconds and share of the peak of heed, and of each peer with the ratio peer / heed, in Markdown."""
    own, *peers = sorted(_names(results), key=lambda name: not named(name).is_heed)
    header = [f"time of {shape}", f"{named(own).title}, ms"]
    has_peak = any(_seconds(REGISTER_PEAK, by_side) for _, by_side in results)
    header += [SHARE] if has_peak else []
    peers = [name for name in peers if name != REGISTER_PEAK]
    for name in peers:
        header += [f"{named(name).title}, ms", "ratio"]
    rows = []
    for case, by_side in results:
        heed = _seconds(own, by_side)
        cells = [case.name, _milliseconds(heed)]
        cells += [_share_of_peak(_seconds(REGISTER_PEAK, by_side), heed)] if has_peak else []
        for name in peers:
            seconds = _seconds(name, by_side)
            mark = "*" if name in by_side and by_side[name].instead else ""
            ratio = _ratio(seconds / heed if seconds and heed else None)
            cells += [_milliseconds(seconds) + mark, ratio]
        rows.append(cells)
    return _markdown(header, rows)


def memory_table(results: Results, shape: str) -> str:
    """Return MiB that each side adds to its process beyond inputs and gradients, in Markdown."""
    names = _names(results)
    header = [f"memory of {shape}", *(f"{named(name).title}, MiB" for name in names)]
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
    """Put a suite's tables into a page, between the two lines that name the section.

    Args:
        page: Markdown with `<!-- figures: NAME -->` and `<!-- end of figures: NAME -->`.
        name: the section.
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
    section = section_of(record.suite, record.about)
    path.write_text(fill(page, section, tables(record)), encoding="utf-8")


def _names(results: Results) -> list[str]:
    """Return the sides of all cases, in the order of `PEERS`; heed's variants as they came."""
    known = dict.fromkeys(name for _, by_side in results for name in by_side)
    order = {name: place for place, name in enumerate(PEERS)}
    return sorted(known, key=lambda name: order.get(name, len(order)))


def _seconds(name: str, by_side: dict[str, Result]) -> float | None:
    return median(by_side[name], by_side) if name in by_side else None


def _notes(results: Results) -> list[str]:
    """Return a paragraph for each side that computed another case, or has no result."""
    lines: dict[str, list[str]] = {}
    for case, by_side in results:
        for name, result in by_side.items():
            title = named(name).title
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
