"""The tables of a run, in Markdown, and their place in a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.peers import BEFORE, PEERS, REGISTER_PEAK, named
from benchmarks.results import Record, Result, Results, Row, name_results
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
_PACKAGES = {
    "TensorFlow": "tensorflow",
    "Keras": "keras",
    "PyTorch": "torch",
    "JAX": "jax",
    "CTranslate2": "ctranslate2",
    "llama-cpp-python": "llama_cpp",
    "NumPy": "numpy",
    "Python": "python",
}


class Verdict(NamedTuple):
    """The result of a bar: heed's seconds, the fastest peer and its seconds; None for what was not measured."""

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


def tables(record: Record) -> str:
    """Return all tables of a run, and how it was made, in Markdown."""
    suite, about = SUITES[record.suite], record.about
    held = ", to which heed and its peers are held" if about["held_to"] else ""
    commit = f", commit {about['commit']}" if about["commit"] else ""
    parts = [f"**{about['instruction_set']}**{held}: {about['processor']}{commit}"]
    names, rows = _names([*record.times, *record.memory]), record.rows
    if suite.bars and not any(name.endswith(BEFORE) for name in names):
        bars = [bar.on(about["instruction_set"]) for bar in suite.bars]
        parts += [bar_table(bars, record.times)] if record.times else []
        rows = [*memory_rows(suite.memory_bars, record.memory), *rows]
    else:
        for kind, shape in SHAPE.items():
            times = [entry for entry in record.times if entry[0].kind == kind]
            memory = [entry for entry in record.memory if entry[0].kind == kind]
            parts += [side_table(times, shape, "ms")] if times else []
            parts += [side_table(memory, shape, "MiB")] if memory else []
    parts += [row_table(rows)] if rows else []
    notes = _notes(record.times) + _notes(record.memory)
    return "\n\n".join([*parts, *record.problems, *notes, describe_run(record)])


def describe_run(record: Record) -> str:
    """Return the command, machine and versions."""
    about, note = record.about, SUITES[record.suite].note
    packages = [f"heed {about['heed']}" + (f" at {about['commit']}" if about["commit"] else "")]
    packages += [f"{name} {about.get(key, 'not installed')}" for name, key in _PACKAGES.items()]
    gpu = f"{about['gpu']}; " if about.get("gpu") else ""
    return (
        f"`{about['command']}` on {about['day']}; {gpu}{about['processor']}, {about['cores']} cores, "
        f"{about['threads']} threads per side; heed's implementation: {about['implementation']} "
        f"({about['instruction_set']}); register peak {about['register_peak']}; "
        f"{', '.join(packages)}.{f' {note}.' if note else ''}"
    )


def row_table(rows: Sequence[Row]) -> str:
    """Return figures of measurements with their bars; beside another heed's, if there are any."""
    two = any(row.before for row in rows)
    header = ["", "measured", *(["before", "heed's time before / now"] if two else []), "bar", ""]
    words, lines = {True: "met", False: "missed", None: ""}, []
    for row in rows:
        bound = "" if row.bar is None else f"{'<=' if row.at_most else '>='} {row.bar:.3g}"
        line = [row.name, f"{row.value:.3g} {row.unit}".strip()]
        if two:
            value, seconds = row.before or (None, None)
            line.append("" if value is None else f"{value:.3g}")
            line.append(_ratio(seconds, row.seconds) if seconds and row.seconds else "")
        lines.append([*line, bound, "; ".join(filter(None, [words[row.met], row.note]))])
    return _markdown(header, lines)


def bar_table(chosen: Sequence[Bar], times: Results) -> str:
    """Return heed's time, the peer's, their ratio, and whether it is met, for each bar whose case was measured.

    Beside these stand heed's share of the register peak, and the share of attention in the time of whole models.
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
        row += [_ratio(verdict.seconds, verdict.heed), f"{verdict.bar.at_least:g}"]
        row += [MARKS[verdict.met]]
        row += [_share_of_peak(peak, verdict.heed)] if any(peaks) else []
        if any(rests):
            row += [_share(rest, verdict.heed), _share(rest, verdict.seconds)]
        rows.append(row)
    return _markdown(header, rows)


def _share_of_peak(peak: float | None, heed: float | None) -> str:
    """Return the time of the products at the peak, as a share of heed's time; rounded down."""
    return f"{math.floor(100 * peak / heed)} %" if peak and heed else "-"


def _share(without: float | None, whole: float | None) -> str:
    return f"{max(0.0, 1 - without / whole):.0%}" if without and whole else "-"


def _to_beat(verdict: Verdict) -> str:
    """Return the peer, with a remark if it computed another case."""
    names = [verdict.peer] if verdict.peer else list(verdict.bar.peers)
    title = " or ".join(PEERS[name].title for name in names)
    if verdict.bar.case.kind == "dot-product" and PEERS[names[0]].is_limit:
        return f"the {title}"
    same = PEERS[names[0]].computes(verdict.bar.case) == verdict.bar.case
    return title if same else f"{title}, all keys"


def memory_rows(bars: Sequence[MemoryBar], memory: Results) -> list[Row]:
    """Return the row of each bar on memory, or on its share of a peer's, that was measured."""
    rows = []
    for bar in bars:
        sides = dict(memory).get(bar.case, {})
        own = sides.get(OWN[bar.case.kind], Result()).added_mib
        peer = sides.get(bar.peer or "", Result()).added_mib
        name = f"memory of {bar.case.name}"
        if own is not None and peer:
            note = f"heed {own:.0f} MiB, peer {peer:.0f} MiB"
            rows.append(Row(f"{name}, share of the peer's", own / peer, bar.below, True, note=note))
        elif own is not None and bar.peer is None:
            rows.append(Row(name, own, bar.below, at_most=True, unit="MiB"))
    return rows


def side_table(results: Results, shape: str, unit: str) -> str:
    """Return what each side takes, in Markdown.

    For times ("ms"), heed's share of the peak and the ratios peer / heed stand beside them; memory ("MiB") is what a
    side adds to its process beyond inputs and gradients. `shape` names the numbers in a case's name.
    """
    own, *peers = sorted(_names(results), key=lambda name: not named(name).is_heed)
    has_peak, is_time = REGISTER_PEAK in peers, unit == "ms"
    peers = [name for name in peers if name != REGISTER_PEAK]
    header = [f"{'time' if is_time else 'memory'} of {shape}", f"{named(own).title}, {unit}"]
    header += [SHARE] if has_peak else []
    for name in peers:
        header += [f"{named(name).title}, {unit}", *(["ratio"] if is_time else [])]
    rows = []
    for case, by_side in results:
        heed = _seconds(own, by_side)
        cells = [case.name, _show(by_side.get(own, Result()))]
        cells += [_share_of_peak(_seconds(REGISTER_PEAK, by_side), heed)] if has_peak else []
        for name in peers:
            result = by_side.get(name, Result())
            cells += [_show(result) + "*" * bool(result.instead)]
            cells += [_ratio(result.seconds, heed)] if is_time else []
        rows.append(cells)
    return _markdown(header, rows)


def summarize(by_side: dict[str, Result]) -> str:
    """Return the results of all sides of one case in one line, in ms or MiB."""
    return ", ".join(f"{name} {_show(result)}" for name, result in by_side.items())


def fill(page: str, record: Record, text: str) -> str:
    """Put a run's tables into a page, between `<!-- figures: NAME -->` and `<!-- end of figures: NAME -->`.

    NAME is the run's suite, with the instruction set that it is held to or has a section for. Each line must stand
    there once.
    """
    in_use, held_to = record.about["instruction_set"], record.about["held_to"]
    has_section = in_use in SUITES[record.suite].sections
    name = name_results(record.suite, in_use if has_section else held_to)
    first, last = f"<!-- figures: {name} -->\n", f"<!-- end of figures: {name} -->"
    if page.count(first) != 1 or page.count(last) != 1:
        raise ValueError(f"the page must have the lines {first.strip()} and {last} once each")
    before, _, rest = page.partition(first)
    return f"{before}{first}{text}\n{last}{rest.partition(last)[2]}"


def _names(results: Results) -> list[str]:
    """Return the sides of all cases, in the order of `PEERS`."""
    known = {name for _, by_side in results for name in by_side}
    return sorted(known, key=lambda name: ([*PEERS].index(name.removesuffix(BEFORE)), name))


def _seconds(name: str, by_side: dict[str, Result]) -> float | None:
    return by_side.get(name, Result()).seconds


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


def _show(result: Result) -> str:
    return _milliseconds(result.seconds) if result.added_mib is None else f"{result.added_mib:.0f}"


def _ratio(seconds: float | None, heed: float | None) -> str:
    """Return the ratio rounded down, so that 1.20 means at least 1.2."""
    return f"{math.floor(seconds / heed * 100) / 100:.2f}" if seconds and heed else "-"


def _markdown(header: list[str], rows: list[list[Any]]) -> str:
    """Return a table whose first and last columns are texts, and whose others are numbers."""
    rule = ["---", *["---:"] * (len(header) - 2), "---"]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *rows))
