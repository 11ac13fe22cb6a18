"""A page about an evaluation: figures, the distribution of sentence scores, the worst and the best sentences."""

from __future__ import annotations

import difflib
import html
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.errors import TaskError
from heed.inspect.drawing import drawing_of, drawing_parts, fill, json_in_html
from heed.seq2seq.atomic_files import write_atomically
from heed.seq2seq.evaluating.comparison import Comparison
from heed.seq2seq.evaluating.evaluation import Answer, Evaluation, check_same_pairs
from heed.seq2seq.text.scoring import sentence_chrf
from heed.seq2seq.translating.attention import AttentionReader
from heed.seq2seq.translating.translator import Translator

_FILES = Path(__file__).parent / "_page_files"
_BINS = 20  # of the distribution, each 100 / 20 points of chrF wide
# The most characters of all drawings: later sentences have none, so a browser can hold the page.
_MOST = 16_000_000


@dataclass(frozen=True)
class Compared:
    """A second run, evaluated on the same pairs.

    Args:
        name: its name on the page.
        evaluation: of it.
        comparisons: the results of `compare`.
    """

    name: str
    evaluation: Evaluation
    comparisons: Sequence[Comparison] = ()


def write_report(
    path: Path,
    translator: Translator,
    evaluation: Evaluation,
    other: Compared | None = None,
    sentences: int = 10,
) -> Path:
    """Write one HTML page of an evaluation that needs no network, server or library.

    It shows the figures, the distribution of chrF by sentence, and the worst and the best sentences, each with every
    head of the run's attention.

    Args:
        path: the file; an existing one is replaced.
        translator: the evaluated run.
        evaluation: its result of `evaluate`.
        other: a second run to compare it with, without its attention.
        sentences: number of the worst sentences, which are wrong, and of the best; 0 or more.

    Returns:
        `path`.

    Raises:
        TaskError: without the sacrebleu library, or if the two were evaluated on other pairs.
        OSError: if the file cannot be written.
    """
    data = _collect(translator, evaluation, other, sentences)
    shared = drawing_parts()
    parts = {
        **shared,
        "title": html.escape(data["title"]),
        "style": f"{shared['style']}{_read_file('report.css')}",
        "script": _read_file("report.js"),
        "data": json_in_html(data),
    }
    text = fill(_read_file("report.html"), parts)
    # Half of a surrogate pair, as a model may write byte by byte, cannot be encoded.
    write_atomically(path, lambda file: file.write(text.encode("utf-8", "replace")))
    return path


def mark_differences(text: str, other: str) -> list[tuple[str, bool]]:
    """Split a text into parts, each with whether the other lacks it; by words, or letters if both are one word.

    Example:
        >>> mark_differences("one hundred two", "one thousand two")
        [('one ', False), ('hundred', True), (' two', False)]
        >>> mark_differences("zwei", "drei")
        [('zw', True), ('ei', False)]
    """
    between = " " if " " in text + other else ""
    own, others = (x.split(between) if between else list(x) for x in (text, other))
    lacking = [True] * len(own)
    matcher = difflib.SequenceMatcher(None, own, others, autojunk=False)
    for start, _, size in matcher.get_matching_blocks():
        lacking[start : start + size] = [False] * size
    pieces = []
    for i, piece in enumerate(own):
        if i:
            pieces.append((between, lacking[i - 1] and lacking[i]))
        pieces.append((piece, lacking[i]))
    parts = itertools.groupby(pieces, key=lambda piece: piece[1])
    merged = [("".join(text for text, _ in group), lacks) for lacks, group in parts]
    return [part for part in merged if part[0]]


def _collect(
    translator: Translator, evaluation: Evaluation, other: Compared | None, count: int
) -> dict[str, Any]:
    judged = [evaluation, *([other.evaluation] if other else [])]
    check_same_pairs(judged)
    scores = [
        sentence_chrf([x.translation for x in one.answers], [x.reference for x in one.answers])
        for one in judged
    ]
    worst, best = _select_ends(evaluation.answers, scores[0], count)
    attention, several = _AttentionDrawer(translator), len(evaluation.groups()) > 1

    def describe(i: int) -> dict[str, Any]:
        answer, texts = evaluation.answers[i], [one.answers[i].translation for one in judged]
        return {
            "source": answer.source,
            "group": answer.group if several else "",
            "language": answer.group if answer.group in translator.task.languages else "",
            "right": answer.right,
            "reference": mark_differences(answer.reference, answer.translation),
            "translations": [
                {"parts": mark_differences(text, answer.reference), "score": score}
                for text, score in zip(texts, (own[i] for own in scores), strict=True)
            ],
            "attention": attention(answer),
        }

    run = translator.run.path
    return {
        "title": f"How {run.resolve().name} was judged",
        "runs": [str(run), *([other.name] if other else [])],
        "about": _describe(translator, evaluation),
        "figures": _compute_figures(judged),
        "notes": [*map(str, other.comparisons if other else ()), *_list_notes(evaluation)],
        "bins": [_count_bins(one.answers, own) for one, own in zip(judged, scores, strict=True)],
        "wrong": len(evaluation.wrong),
        "worst": [describe(i) for i in worst],
        "best": [describe(i) for i in best],
        "withoutAttention": attention.missing,  # once all are drawn
    }


def _select_ends(
    answers: Sequence[Answer], scores: Sequence[float], count: int
) -> tuple[list[int], list[int]]:
    """Return the places of the worst answers, which are wrong, and of the best others; of equals the longer first."""
    worst = sorted(
        (i for i, answer in enumerate(answers) if not answer.right),
        key=lambda i: (scores[i], -len(answers[i].reference)),
    )[:count]
    others = set(range(len(answers))) - set(worst)
    best = sorted(others, key=lambda i: (-scores[i], -len(answers[i].reference), i))
    return worst, best[:count]


def _describe(translator: Translator, evaluation: Evaluation) -> str:
    pairs = "pairs that were given" if evaluation.given_pairs else "held-out pairs"
    which = f"step {translator.step:,}"
    if averaged := translator.weights.get("averaged"):
        which = f"the mean of the steps {', '.join(f'{step:,}' for step in averaged)}"
    return f"{len(evaluation.answers):,} {pairs}, {which}, decoded in {evaluation.seconds:.1f} s"


def _compute_figures(judged: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """Return the figures: name, value of each run, and a note."""
    first = judged[0]
    figures = [_share_figure("right to the letter", judged, "")]
    for name, format_, note in (
        ("BLEU", ".1f", first.signatures.get("BLEU", "")),
        ("chrF", ".1f", first.signatures.get("chrF", "")),
        ("perplexity", ".2f", "per token of the references"),
    ):
        values = [getattr(one, name.lower()) for one in judged]
        if values[0] is not None:
            texts = ["" if x is None else format(x, format_) for x in values]
            figures.append({"name": name, "values": texts, "note": note})
    figures += _compute_group_figures("", judged)
    for name in first.extra:
        others = [one.extra[name] for one in judged if name in one.extra]
        if len(others) == len(judged):
            figures.append(_share_figure(name, others, "training draws on these"))
            figures += _compute_group_figures(name, others)
    return figures


def _compute_group_figures(of: str, judged: Sequence[Evaluation]) -> list[dict[str, Any]]:
    groups = [one.groups() for one in judged]
    if len(groups[0]) == 1:
        return []
    return [
        _share_figure(f"{name} {of}".strip(), [own[name] for own in groups], "")
        for name in groups[0]
    ]


def _share_figure(name: str, judged: Sequence[Evaluation], note: str) -> dict[str, Any]:
    counts = f"{judged[0].right:,} of {len(judged[0].answers):,}"
    return {
        "name": name,
        "values": [f"{100 * one.exact:.1f} %" for one in judged],
        "note": ", ".join(filter(None, [counts, note])),
    }


def _list_notes(evaluation: Evaluation) -> list[str]:
    notes = evaluation.notes()
    if evaluation.cut:
        notes.append(f"Sources that are too long and were cut: {evaluation.cut:,}")
    if left_out := evaluation.left_out:
        notes.append(f"Pairs that were left out: {len(left_out):,}; the first: {left_out[0]}")
    return notes


def _count_bins(answers: Sequence[Answer], scores: Sequence[float]) -> list[list[int]]:
    """Count for each bin of chrF the answers in it, and the right ones of them; 100 is in the last one."""
    bins = [[0, 0] for _ in range(_BINS)]
    for answer, score in zip(answers, scores, strict=True):
        own = bins[min(_BINS - 1, int(score * _BINS / 100))]
        own[0] += 1
        own[1] += answer.right
    return bins


class _AttentionDrawer:
    """Draws the attention of sentences, as long as the page has room."""

    def __init__(self, translator: Translator) -> None:
        self.missing = ""
        self._left = _MOST
        try:
            self._reader = AttentionReader(translator, compiled=False)
        except TaskError:
            self.missing = "This model has no attention to show."

    def __call__(self, answer: Answer) -> dict[str, Any] | None:
        if self.missing or not answer.translation_ids:
            return None
        ids = list(answer.source_ids), list(answer.translation_ids)
        seen = self._reader(answer.source, None, *ids)
        drawing = drawing_of(seen.capture, seen.tokens)
        self._left -= len(drawing["weights"])
        if self._left < 0:
            self.missing = "Only the first sentences have their attention: all of them would exceed a browser's memory."
            return None
        return drawing


def _read_file(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")
