"""Compares two runs, with significance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heed.seq2seq.evaluating.evaluation import Evaluation, check_same_pairs
from heed.seq2seq.text.scoring import choose_metrics, load_sacrebleu

_SAMPLES = 1_000


@dataclass(frozen=True)
class Comparison:
    """One metric of two runs on the same pairs.

    Args:
        metric: "BLEU", "chrF", or where BLEU has no meaning "exact", the share of right translations.
        scores: of the first and the second run, in percent.
        p_value: probability of a difference this large if the runs were equally good, in (0, 1]; 1 for equal scores.
    """

    metric: str
    scores: tuple[float, float]
    p_value: float

    def __str__(self) -> str:
        first, second = self.scores
        return f"{self.metric} {first:.1f} and {second:.1f}: {second - first:+.1f} (p = {self.p_value:.3f})"


def compare(first: Evaluation, second: Evaluation) -> list[Comparison]:
    """Compare two evaluations of the same pairs by paired bootstrap resampling.

    Args:
        first, second: of two runs; the first one's tokenizer of BLEU counts.

    Returns:
        BLEU, or where that has no meaning the share of right translations; and chrF.

    Raises:
        TaskError: if the pairs differ, or without the sacrebleu library.

    Source:
        Koehn, "Statistical significance tests for machine translation evaluation" (2004), as sacrebleu computes it:
        1,000 samples of the pairs, drawn with a fixed seed.
    """
    load_sacrebleu("a comparison")
    from sacrebleu.significance import PairedTest

    check_same_pairs((first, second))
    references = [answer.reference for answer in first.answers]
    metrics = choose_metrics(references, first.bleu_tokenizer).by_name
    translations: list[tuple[str, Sequence[str]]] = [
        (name, [answer.translation for answer in one.answers])
        for name, one in (("first", first), ("second", second))
    ]
    test = PairedTest(translations, metrics, [references], test_type="bs", n_samples=_SAMPLES)
    results: dict[str, Any] = test()[1]
    rows = [name for name in results if name != "System"]
    return [
        # sacrebleu counts samples that differ by more than the runs do: none, if all samples are equal too.
        Comparison(
            metric, (one.score, other.score), other.p_value if one.score != other.score else 1.0
        )
        for metric, (one, other) in zip(metrics, (results[row] for row in rows), strict=True)
    ]
