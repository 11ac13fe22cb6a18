"""Finds problems of parallel text before training on it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from heed.seq2seq.corpus import Corpus

_MAX_NUMBERS = 5  # line numbers of a finding
_LONGEST = 500  # letters: about 128 subwords
_UNLIKE = 3.0  # ratio of lengths, of sides of more than a few words
_FEW_WORDS = 30  # letters


@dataclass
class Finding:
    """Lines with one problem.

    Args:
        text: the problem.
        stops: whether training stops at such a line.
        count: the number of lines.
        numbers: the first of them.
    """

    text: str
    stops: bool = False
    count: int = 0
    numbers: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        lines = ", ".join(f"{number:,}" for number in self.numbers)
        rest = ", ..." if self.count > len(self.numbers) else ""
        return f"{self.count:,} {self.text}: line {lines}{rest}"


@dataclass
class CorpusReport:
    """The problems found in a corpus.

    Args:
        lines: lines read.
        pairs: different pairs with two sides, as training counts them.
        findings: the problems, in the order found.
    """

    lines: int
    pairs: int
    findings: list[Finding]

    @property
    def stops(self) -> bool:
        """Whether training would stop at one of the lines."""
        return any(finding.stops for finding in self.findings)

    def report(self) -> Iterator[str]:
        """The findings as lines of text."""
        yield f"{self.lines:,} lines, {self.pairs:,} different pairs"
        yield from map(str, self.findings)
        if not self.findings:
            yield "no problems"


def check_corpus(corpus: Corpus) -> CorpusReport:
    """Reads a corpus once and counts its problems.

    Problems are lines that are not UTF-8, lack a counterpart or are not a pair, have an empty side, more than 500
    letters, a control character, the same text on both sides or one side three times as long as the other, and repeated
    pairs and sources (8 bytes are kept of each, so memory grows slowly).

    Raises:
        TaskError: if a file cannot be read.
    """
    findings: dict[str, Finding] = {}
    lines = 0
    pairs: set[bytes] = set()
    sources: set[bytes] = set()

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
        if not (source and target):
            add(number, "with an empty side, left out of training")
            continue
        for fault in _find_faults(source, target):
            add(number, fault)
        pair_hash, source_hash = _hash(source, target), _hash(source)
        if pair_hash in pairs:
            add(number, "repeated on both sides")
        elif source_hash in sources:
            add(number, "with a repeated source and another translation")
        pairs.add(pair_hash)
        sources.add(source_hash)
    return CorpusReport(lines, len(pairs), list(findings.values()))


def _find_faults(source: str, target: str) -> Iterator[str]:
    if max(len(source), len(target)) > _LONGEST:
        yield f"with more than {_LONGEST} letters, too long for most models"
    if not (_is_printable(source) and _is_printable(target)):
        yield "with a control character"
    if source == target:
        yield "with the same text on both sides"
    shorter, longer = sorted((len(source), len(target)))
    if longer > _UNLIKE * shorter and longer > _FEW_WORDS:
        yield f"with one side more than {_UNLIKE:.0f} times as long as the other"


def _is_printable(text: str) -> bool:
    return all(letter.isprintable() or letter.isspace() for letter in text)


def _hash(*sides: str) -> bytes:
    return hashlib.blake2b("\n".join(sides).encode(), digest_size=8).digest()
