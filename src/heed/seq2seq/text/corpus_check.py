"""Finds problems of parallel text before training on it."""

from __future__ import annotations

import array
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from heed.seq2seq.text.corpus import Corpus
from heed.seq2seq.text.normalization import UNUSABLE, Normalizer
from heed.seq2seq.text.pair_store import hash_sentences
from heed.seq2seq.text.parallel_text import LEAST_PAIRS

_MAX_NUMBERS = 5  # line numbers of a finding
_LONGEST = 500  # letters: about 128 subwords
_UNLIKE = 3.0  # ratio of lengths, expected and found, of sides of more than a few words
_FEW_WORDS = 30  # letters


@dataclass
class Finding:
    """Lines with one problem, or a problem of the whole text, which has no numbers."""

    text: str
    stops: bool = False  # whether training does, at such a line
    count: int = 0  # of lines
    numbers: list[int] = field(default_factory=list)  # of the first

    def __str__(self) -> str:
        if not self.numbers:
            return f"{self.count:,} {self.text}"
        lines = ", ".join(f"{number:,}" for number in self.numbers)
        rest = ", ..." if self.count > len(self.numbers) else ""
        return f"{self.count:,} {self.text}: line {lines}{rest}"


@dataclass
class CorpusReport:
    """The problems found in a corpus, in order."""

    lines: int
    pairs: int  # different ones with two sides, as training counts them
    findings: list[Finding]

    @property
    def stops(self) -> bool:
        """Whether training would stop at one of the lines."""
        return any(finding.stops for finding in self.findings)

    def report(self) -> Iterator[str]:
        """Yield the findings as lines of text."""
        yield f"{self.lines:,} lines, {self.pairs:,} different pairs"
        yield from map(str, self.findings)
        if not self.findings:
            yield "no problems"


def check_corpus(corpus: Corpus) -> CorpusReport:
    """Read a corpus once and count its problems.

    Problems are lines that are not UTF-8, lack a counterpart or are not a pair, have an empty side, more than 500
    letters, a control character, a character that no token can hold, the same text on both sides or one side more than
    three times as long as the other (as the median pair has them), repeated pairs and sources, and too few different
    sentences. Some 20 bytes are kept of each pair, so memory grows slowly.

    Raises:
        TaskError: if a file cannot be read.
    """
    findings: dict[str, Finding] = {}
    lines = 0
    pairs: set[int] = set()
    sources: set[int] = set()
    numbers, lengths = array.array("L"), array.array("I")
    normalize = Normalizer("NFC", UNUSABLE)

    def add(number: int, text: str, stops: bool = False) -> None:
        finding = findings.setdefault(text, Finding(text, stops))
        finding.count += 1
        if len(finding.numbers) < _MAX_NUMBERS:
            finding.numbers.append(number)

    for number, source, target, problem in corpus.entries():
        lines = number
        if problem is not None:
            add(number, problem.partition(". Received:")[0], stops=True)
            continue
        for fault in _find_faults(source, target):
            add(number, fault)
        source, target = normalize(source), normalize(target)
        if not (source and target):
            add(number, "with an empty side, left out of training")
            continue
        numbers.append(number)
        lengths.extend((len(source), len(target)))
        pair_hash, source_hash = hash_sentences([f"{source}\0{target}", source]).tolist()
        if pair_hash in pairs:
            add(number, "repeated on both sides")
        elif source_hash in sources:
            add(number, "with a repeated source and another translation")
        pairs.add(pair_hash)
        sources.add(source_hash)
    for number in _find_uneven(numbers, lengths):
        add(number, f"with one side more than {_UNLIKE:.0f} times as long as expected of the other")
    found = list(findings.values())
    if len(sources) < LEAST_PAIRS:
        text = f"different sentences: training needs at least {LEAST_PAIRS}"
        found.append(Finding(text, stops=True, count=len(sources)))
    return CorpusReport(lines, len(pairs), found)


def _find_faults(source: str, target: str) -> Iterator[str]:
    if max(len(source), len(target)) > _LONGEST:
        yield f"with more than {_LONGEST} letters, too long for most models"
    both = source + target
    if any(unicodedata.category(letter) == "Cc" and not letter.isspace() for letter in both):
        yield "with a control character"
    if "\u2581" in both:
        yield "with U+2581, which SentencePiece reads as a space"
    if source == target != "":
        yield "with the same text on both sides"


def _find_uneven(numbers: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """Find lines of which one side is too long for the other: languages need more or fewer letters for the same."""
    if not len(numbers):
        return []
    source, target = np.asarray(lengths, np.float64).reshape(-1, 2).T
    expected = source * np.median(target / source)
    shorter, longer = np.minimum(expected, target), np.maximum(expected, target)
    uneven = (longer > _UNLIKE * shorter) & (np.maximum(source, target) > _FEW_WORDS)
    return np.asarray(numbers)[uneven].tolist()
