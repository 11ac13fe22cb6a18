"""Loads sacrebleu, which scores translations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heed._install import how_to_install
from heed.seq2seq.errors import TaskError


def load_sacrebleu(what: str) -> Any:
    """Imports sacrebleu.

    Args:
        what: the feature that needs it; the error message starts with it.

    Raises:
        TaskError: if it is not installed.
    """
    try:
        import sacrebleu
    except ImportError:
        raise TaskError(f"{what} needs the sacrebleu library: {how_to_install('demo')}") from None
    return sacrebleu


def sentence_chrf(translations: Sequence[str], references: Sequence[str]) -> list[float]:
    """Computes chrF of each translation separately, 0 to 100.

    Raises:
        TaskError: without the sacrebleu library.

    Example:
        >>> sentence_chrf(["one", ""], ["one", "two"])
        [100.0, 0.0]
    """
    metric = load_sacrebleu("the chrF of a sentence").CHRF()
    pairs = zip(translations, references, strict=True)
    return [float(metric.sentence_score(one, [right]).score) for one, right in pairs]
