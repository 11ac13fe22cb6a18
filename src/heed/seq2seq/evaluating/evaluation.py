"""Evaluates a trained run on pairs that it never saw, and on others that its task names."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from heed.errors import TaskError
from heed.seq2seq.tasks.task import Item, Task
from heed.seq2seq.text.corpus import Corpus
from heed.seq2seq.text.scoring import AUTO, choose_bleu_tokenizer, choose_metrics
from heed.seq2seq.tokens.unknown_tokens import describe_unknown, share_unknown
from heed.seq2seq.translating.translator import Translator, is_cut

_JSON_FIELDS = ("source", "translation", "reference", "group")  # of a wrong answer


@dataclass(frozen=True)
class Answer:
    """A model's translation beside the reference.

    Args:
        source: the source text.
        translation: the model's translation.
        reference: the right one.
        group: the language, if the run has several.
        source_ids: the tokens of the source, as the model read them.
        translation_ids: the tokens it wrote, then padding.
    """

    source: str
    translation: str
    reference: str
    group: str
    source_ids: Sequence[int] = field(default=(), repr=False)
    translation_ids: Sequence[int] = field(default=(), repr=False)

    @property
    def right(self) -> bool:
        """Whether translation and reference are identical."""
        return self.translation == self.reference


@dataclass(frozen=True)
class Evaluation:
    """The answers to all held-out evaluation pairs, and their scores.

    Args:
        answers: in the order of the task's items.
        seconds: for decoding, compilation included.
        bleu: BLEU in percent, or None if it is not computed or has no meaning, see `without_bleu`.
        chrf: chrF in percent, or None.
        extra: the task's other evaluations, by name. They are not held out and do not count here.
        cut: number of sources that were cut because they are too long.
        cut_answers: number of translations that were cut at the most tokens.
        signatures: sacrebleu's signatures of the two metrics, by name, to reproduce them.
        given_pairs: whether the pairs were given, not held out.
        left_out: the problems of pairs that could not be evaluated, one line each.
        perplexity: of the references, see `Translator.perplexity`, or None.
        group_scores: BLEU and chrF of each group, by their names above, if there are several.
        without_bleu: why BLEU has no meaning for these references; "" if it has one.
        bleu_tokenizer: the requested tokenizer of BLEU, see `heed.seq2seq.text.scoring`.
        unknown: the shares of "source" and "reference" tokens that the vocabulary does not know, 0 to 1.

    Example:
        >>> evaluation = Evaluation([Answer("1", "one", "one", "en")], seconds=0.1)
        >>> evaluation.exact, evaluation.right
        (1.0, 1)
    """

    answers: Sequence[Answer]
    seconds: float
    bleu: float | None = None
    chrf: float | None = None
    extra: Mapping[str, Evaluation] = field(default_factory=dict)
    cut: int = 0
    signatures: Mapping[str, str] = field(default_factory=dict)
    given_pairs: bool = False
    left_out: Sequence[str] = ()
    perplexity: float | None = None
    group_scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    without_bleu: str = ""
    bleu_tokenizer: str = AUTO
    unknown: Mapping[str, float] = field(default_factory=dict)
    cut_answers: int = 0

    @property
    def right(self) -> int:
        """The number of right answers."""
        return sum(answer.right for answer in self.answers)

    @property
    def exact(self) -> float:
        """The share of right answers, 0 to 1."""
        return self.right / max(1, len(self.answers))

    @property
    def wrong(self) -> list[Answer]:
        """The answers that are not right."""
        return [answer for answer in self.answers if not answer.right]

    def groups(self) -> dict[str, Evaluation]:
        """Return an evaluation of each group."""
        found = {}
        for name in dict.fromkeys(answer.group for answer in self.answers):
            own = [answer for answer in self.answers if answer.group == name]
            scores = self.group_scores.get(name, {})
            found[name] = Evaluation(own, self.seconds, scores.get("bleu"), scores.get("chrf"))
        return found

    def report(self) -> list[str]:
        """Return the figures as lines of text.

        Example:
            >>> Evaluation([Answer("1", "one", "one", "en")], seconds=1.0).report()
            ['1 of 1 held-out answers are right to the letter: 100.00 % (decoded in 1.0 s)']
        """
        kind = "answers" if self.given_pairs else "held-out answers"
        lines = [
            f"{self.right:,} of {len(self.answers):,} {kind} are right to the "
            f"letter: {100 * self.exact:.2f} % (decoded in {self.seconds:.1f} s)"
        ]
        lines += self._report_groups()
        if self.cut:
            lines.append(f"{self.cut:,} of the sources are too long and were cut")
        lines += self.notes()
        if self.chrf is not None:
            lines.append(_format_scores(self.bleu, self.chrf))
            lines += [f"  {name}: {signature}" for name, signature in self.signatures.items()]
        if self.perplexity is not None:
            lines.append(f"perplexity {self.perplexity:.2f} per token of the references")
        if self.left_out:
            lines.append(
                f"{len(self.left_out):,} pairs were left out; the first: {self.left_out[0]}"
            )
        for name, extra in self.extra.items():
            lines.append(
                f"{extra.right:,} of {len(extra.answers):,} {name} are right: "
                f"{100 * extra.exact:.2f} % (training draws on these)"
            )
            lines += extra._report_groups()
        return lines

    def notes(self) -> list[str]:
        """Return what a reader of the figures should know: no BLEU, translations that were cut, unknown tokens."""
        cut = f"{self.cut_answers:,} of the translations were cut at the most tokens (--max-length)"
        lines = [self.without_bleu, cut if self.cut_answers else "", describe_unknown(self.unknown)]
        return [line for line in lines if line]

    def _report_groups(self) -> list[str]:
        groups = self.groups()
        if len(groups) == 1:
            return []
        return [
            f"  {name}  {group.right:,} of {len(group.answers):,}: {100 * group.exact:.2f} %"
            + ("" if group.chrf is None else f", {_format_scores(group.bleu, group.chrf)}")
            for name, group in groups.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures and the first 100 wrong answers, as JSON-ready values."""
        figures: dict[str, Any] = {
            "pairs": len(self.answers),
            "right": self.right,
            "exact": self.exact,
            "seconds": round(self.seconds, 2),
            "groups": {name: group.exact for name, group in self.groups().items()},
            "cut": self.cut,
            "cut_answers": self.cut_answers,
            "wrong": [
                {name: getattr(answer, name) for name in _JSON_FIELDS}
                for answer in self.wrong[:100]
            ],
        }
        details = {
            "group_scores": dict(self.group_scores),
            "signatures": dict(self.signatures),
            "left_out": list(self.left_out),
            "without_bleu": self.without_bleu,
            "unknown": dict(self.unknown),
        }
        figures |= {name: value for name, value in details.items() if value}
        scores = {"bleu": self.bleu, "chrf": self.chrf, "perplexity": self.perplexity}
        figures |= {name: score for name, score in scores.items() if score is not None}
        if self.extra:
            figures["extra"] = {name: one.to_dict() for name, one in self.extra.items()}
        return figures


def check_same_pairs(evaluations: Sequence[Evaluation]) -> None:
    """Raise a TaskError if evaluations are of other pairs than the first one."""
    pairs = [[(answer.source, answer.reference) for answer in one.answers] for one in evaluations]
    if any(one != pairs[0] for one in pairs):
        raise TaskError("two runs can be compared on the same pairs only: give them by --source")


def _format_scores(bleu: float | None, chrf: float) -> str:
    return f"chrF {chrf:.1f}" if bleu is None else f"BLEU {bleu:.1f}, chrF {chrf:.1f}"


def evaluate(
    translator: Translator,
    corpus: Corpus | None = None,
    language: str | None = None,
    bleu_tokenizer: str = AUTO,
) -> Evaluation:
    """Translate given pairs, or the held-out ones of the run's task and its extra evaluations.

    For own text and given pairs it also computes perplexity, and BLEU and chrF if sacrebleu is there.

    Args:
        translator: the run's model.
        corpus: pairs to evaluate on; None takes the held-out ones.
        language: the run's language of the given pairs; None takes the first.
        bleu_tokenizer: of BLEU, see `heed.seq2seq.text.scoring.choose_bleu_tokenizer`.

    Raises:
        TaskError: if the corpus cannot be read, or holds no pair that can be translated; or for a tokenizer that is not
            installed.
    """
    task = translator.task
    if bleu_tokenizer != AUTO:  # before the time that decoding takes
        choose_bleu_tokenizer((), bleu_tokenizer)
    if corpus is not None:
        items, left_out = _read_items(task, corpus, language)
        evaluation = _judge(translator, items)
        figures = _score(translator, items, evaluation.answers, bleu_tokenizer)
        return replace(evaluation, given_pairs=True, left_out=left_out, **figures)
    items = task.evaluation_items()
    evaluation = _judge(translator, items)
    others = task.extra_evaluations().items()
    extra = {name: _judge(translator, items) for name, items in others}
    if not task.has_corpus_scores:
        return replace(evaluation, extra=extra)
    figures = _score(translator, items, evaluation.answers, bleu_tokenizer)
    return replace(evaluation, extra=extra, **figures)


def write_evaluation(translator: Translator, evaluation: Evaluation) -> Path:
    """Write the figures, and a description of the model, to the run's evaluation.json; return its path."""
    figures = {**translator.describe(), **evaluation.to_dict()}
    return translator.run.write_json("evaluation.json", figures)


def _read_items(task: Task, corpus: Corpus, language: str | None) -> tuple[list[Item], list[str]]:
    """Return the pairs of a corpus, and the problems of those that cannot be evaluated."""
    task.check_language(language)
    items, left_out = [], []
    for number, (source, target) in enumerate(corpus.pairs(), 1):
        target = task.normalize_target(target)
        try:
            if not target:
                raise TaskError("its translation is empty")
            items.append(Item(task.encode(source, language), source, target, "given"))
        except TaskError as error:
            left_out.append(f"line {number:,}: {error}")
    if not items:
        why = f"; {left_out[0]}" if left_out else ""
        raise TaskError(f"{corpus} holds no pair that can be translated{why}")
    return items, left_out


def _judge(translator: Translator, items: Sequence[Item]) -> Evaluation:
    began = time.monotonic()
    rows = translator.decode([item.ids for item in items])
    translations = translator.task.decode(rows)
    seconds = time.monotonic() - began
    answers = [
        Answer(item.text, text, item.reference, item.group, item.ids, ids)
        for item, text, ids in zip(items, translations, rows, strict=True)
    ]
    cut = sum(map(is_cut, rows))
    return Evaluation(answers, seconds, cut=sum(item.cut for item in items), cut_answers=cut)


def _score(
    translator: Translator, items: Sequence[Item], answers: Sequence[Answer], bleu_tokenizer: str
) -> dict[str, Any]:
    figures = _score_corpus(answers, bleu_tokenizer)
    groups = dict.fromkeys(answer.group for answer in answers)
    if figures and len(groups) > 1:
        figures["group_scores"] = {}
        for name in groups:
            scores = _score_corpus([a for a in answers if a.group == name], bleu_tokenizer)
            own = {key: scores[key] for key in ("bleu", "chrf") if key in scores}
            figures["group_scores"][name] = own
    figures["bleu_tokenizer"] = bleu_tokenizer
    subwords = getattr(translator.task, "subwords", None)
    if subwords is not None:  # a task may do without a tokenizer
        targets = subwords.encode([item.reference for item in items])
        figures["perplexity"] = translator.perplexity([item.ids for item in items], targets)
        shares = {
            "source": share_unknown(item.ids for item in items),
            "reference": share_unknown(targets),
        }
        figures["unknown"] = {side: share for side, share in shares.items() if share}
    return figures


def _score_corpus(answers: Sequence[Answer], bleu_tokenizer: str) -> dict[str, Any]:
    if importlib.util.find_spec("sacrebleu") is None:
        return {}
    references = [answer.reference for answer in answers]
    metrics = choose_metrics(references, bleu_tokenizer)
    scores = metrics.score([answer.translation for answer in answers], references)
    scores.pop("exact", None)  # it is that of all figures
    return {
        **{name.lower(): score for name, score in scores.items()},
        "signatures": {name: str(metrics.by_name[name].get_signature()) for name in scores},
        "without_bleu": metrics.without_bleu,
    }
