"""Scores of translations by sacrebleu: which tokenizer and which metrics suit the references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heed.config import one_of
from heed.errors import TaskError, convert_value_errors
from heed.install import how_to_install

AUTO = "auto"
# The tokenizers of BLEU. "auto" chooses one by the script of the references.
BLEU_TOKENIZERS = (
    *(AUTO, "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores101", "flores200", "none"),
)
_EXTRAS = {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"}
_ORDER = 4  # tokens in the longest sequence that BLEU counts
_LEAST_LONG = 0.1  # share of the references that must have so many
# Share of the words that a script must have; a character of the scripts below counts as one.
_LEAST_SHARE = 0.1
# Scripts without spaces between words, or whose words hold particles, by the tokenizer that splits them.
_SCRIPTS = {
    "ja-mecab": r"[\p{Hiragana}\p{Katakana}]",
    "zh": r"[\p{Han}\p{Bopomofo}]",
    "ko-mecab": r"\p{Hangul}",
    "flores200": (
        r"[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}\p{Javanese}\p{Balinese}"
        r"\p{Tai_Le}\p{New_Tai_Lue}\p{Tai_Tham}\p{Tai_Viet}]"
    ),
}


@dataclass(frozen=True)
class Metrics:
    """The metrics that suit some references: "BLEU" and "chrF"; "exact" replaces BLEU where it has no meaning."""

    by_name: dict[str, Any]  # sacrebleu's
    without_bleu: str = ""  # why BLEU has no meaning

    def score(self, translations: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Compute each metric of a text, in percent."""
        return {
            name: float(metric.corpus_score(translations, [references]).score)
            for name, metric in self.by_name.items()
        }


def load_sacrebleu(what: str) -> Any:
    """Import sacrebleu; without it, a TaskError says what needs it."""
    try:
        import sacrebleu
    except ImportError:
        raise TaskError(f"{what} needs the sacrebleu library: {how_to_install('demo')}") from None
    return sacrebleu


def choose_bleu_tokenizer(references: Sequence[str], wanted: str = AUTO) -> str:
    """Choose sacrebleu's tokenizer for BLEU by the script of the references.

    Chinese takes "zh", Japanese "ja-mecab", Korean "ko-mecab"; Thai, Lao, Khmer, Burmese, Tibetan and mixtures take
    "flores200"; "char" replaces those that this machine lacks. Every other script takes "13a".

    Args:
        references: the right translations.
        wanted: one of `BLEU_TOKENIZERS`; another than "auto" is returned as it is.

    Raises:
        TaskError: if the wanted one is unknown, or needs something that is not installed.

    Example:
        >>> choose_bleu_tokenizer(["two words"]), choose_bleu_tokenizer(["我们明天去北京"])
        ('13a', 'zh')
        >>> choose_bleu_tokenizer(["我们明天去北京"], "char")
        'char'
    """
    with convert_value_errors():
        one_of(BLEU_TOKENIZERS).check("bleu_tokenizer", wanted)
    if wanted != AUTO:
        if lack := _find_lack(wanted):
            raise TaskError(f"`bleu_tokenizer` {wanted} needs {lack}")
        return wanted
    import regex  # sacrebleu needs it

    rest, counts = "\n".join(references), {}
    for name, script in _SCRIPTS.items():
        rest, counts[name] = regex.subn(script, " ", rest)
    words = sum(counts.values()) + len(regex.findall(r"\p{L}[\p{L}\p{M}]*", rest))
    found = [name for name, count in counts.items() if count > _LEAST_SHARE * words]
    if found[:2] == ["ja-mecab", "zh"]:  # Japanese has both
        found.remove("zh")
    if not found:
        return "13a"
    chosen = found[0] if len(found) == 1 else "flores200"
    return "char" if _find_lack(chosen) else chosen


def choose_metrics(references: Sequence[str], bleu_tokenizer: str = AUTO) -> Metrics:
    """Choose the metrics for some references.

    BLEU counts sequences of up to four tokens. It is 0 for every text without any, so it is left out unless a tenth
    of the references has four tokens.

    Raises:
        TaskError: without the sacrebleu library; or see `choose_bleu_tokenizer`.
    """
    sacrebleu = load_sacrebleu("a score")
    chosen = choose_bleu_tokenizer(references, bleu_tokenizer)
    bleu, chrf = sacrebleu.BLEU(tokenize=chosen), sacrebleu.CHRF()
    long = sum(len(bleu.tokenizer(text).split()) >= _ORDER for text in references)
    if long > _LEAST_LONG * len(references):
        return Metrics({"BLEU": bleu, "chrF": chrf})
    why = (
        f"BLEU has no meaning for texts this short: {long:,} of {len(references):,} references have the "
        f"{_ORDER} tokens ({chosen}) that it counts; chrF and the share of right answers have one"
    )
    return Metrics({"exact": _make_exact_metric(), "chrF": chrf}, why)


def sentence_chrf(translations: Sequence[str], references: Sequence[str]) -> list[float]:
    """Compute chrF of each translation separately, 0 to 100.

    Raises:
        TaskError: without the sacrebleu library.

    Example:
        >>> sentence_chrf(["one", ""], ["one", "two"])
        [100.0, 0.0]
    """
    metric = load_sacrebleu("the chrF of a sentence").CHRF()
    pairs = zip(translations, references, strict=True)
    return [float(metric.sentence_score(one, [right]).score) for one, right in pairs]


def _find_lack(tokenizer: str) -> str:
    """Return what this machine lacks for a tokenizer, and how to get it; "" if it is there."""
    from sacrebleu import BLEU
    from sacrebleu.tokenizers import tokenizer_spm
    from sacrebleu.utils import SACREBLEU_DIR

    if tokenizer in _EXTRAS:
        try:
            BLEU(tokenize=tokenizer)
        except (RuntimeError, ImportError, AssertionError):  # the last: of another dictionary
            return f"packages that are not installed: pip install '{_EXTRAS[tokenizer]}'"
    elif tokenizer in tokenizer_spm.SPM_MODELS:
        name = tokenizer_spm.SPM_MODELS[tokenizer]["url"].rpartition("/")[2]
        path = Path(SACREBLEU_DIR, "models", name)
        if not path.exists():
            call = f"python -c \"import sacrebleu; sacrebleu.BLEU(tokenize='{tokenizer}')\""
            return f"{path}, which sacrebleu downloads with: {call}"
    return ""


def _make_exact_metric() -> Any:
    """Return the share of translations that equal their references, as a metric of sacrebleu."""
    import numpy as np
    from sacrebleu.metrics.base import Metric, Score

    class Exact(Metric):
        def _preprocess_segment(self, sent: str) -> str:
            return sent

        def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
            return {"references": refs}

        def _compute_segment_statistics(
            self, hypothesis: str, ref_kwargs: dict[str, Any]
        ) -> list[int]:
            return [int(hypothesis in ref_kwargs["references"]), 1]

        def _compute_score_from_stats(self, stats: Any) -> Any:
            return Score("exact", 100 * float(stats[0]) / float(stats[1]))

        def _aggregate_and_compute(self, stats: Any) -> Any:
            return self._compute_score_from_stats(np.sum(stats, axis=0))

    return Exact()
