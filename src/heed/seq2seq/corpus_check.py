"""What is wrong with parallel text, before time goes into training on it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from heed.seq2seq.corpus import Corpus

_SHOWN = 5  # line numbers of a finding
_LONGEST = 500  # letters: about 128 subwords
_UNLIKE = 3.0  # times as long as the other side, of sides that are more than a few words
_FEW_WORDS = 30  # letters


@dataclass
class Finding:
    """Lines of one fault.

    Args:
        text: What is wrong.
        stops: Whether training stops at such a line.
        count: How many there are.
        numbers: The first of them.
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
    """What was found in a corpus.

    Args:
        lines: How many lines were read.
        pairs: How many different pairs with two sides there are: what training has.
        findings: What is wrong, as it came up.
    """

    lines: int
    pairs: int
    findings: list[Finding]

    @property
    def stops(self) -> bool:
        """Whether training would stop at one of the lines."""
        return any(finding.stops for finding in self.findings)

    def report(self) -> Iterator[str]:
        """The findings in lines, for people."""
        yield f"{self.lines:,} lines, different pairs among them: {self.pairs:,}"
        yield from map(str, self.findings)
        if not self.findings:
            yield "nothing is wrong with them"


def check_corpus(corpus: Corpus) -> CorpusReport:
    """Reads a corpus once, from its first line to its last, and counts what is wrong.

    It finds lines that are not UTF-8, that have no counterpart or are no pair, with an empty side, with more than 500
    letters, with a control character, with the same text on both sides or one side three times as long as the other,
    and pairs and sources that come more than once (8 bytes are kept of each, so memory grows slowly).

    Raises:
        TaskError: if a file cannot be read.
    """
    found: dict[str, Finding] = {}
    lines = 0
    pairs: set[bytes] = set()
    sources: set[bytes] = set()

    def note(number: int, text: str, stops: bool = False) -> None:
        finding = found.setdefault(text, Finding(text, stops))
        finding.count += 1
        if len(finding.numbers) < _SHOWN:
            finding.numbers.append(number)

    for number, source, target, problem in corpus.entries():
        lines = number
        if problem is not None:
            note(number, problem.partition(". Received:")[0], stops=True)
            continue
        if not (source and target):
            note(number, "with an empty side, left out of training")
            continue
        for fault in _faults(source, target):
            note(number, fault)
        pair, seen = _digest(source, target), _digest(source)
        if pair in pairs:
            note(number, "that were there before, both sides")
        elif seen in sources:
            note(number, "whose source was there before, with another translation")
        pairs.add(pair)
        sources.add(seen)
    return CorpusReport(lines, len(pairs), list(found.values()))


def _faults(source: str, target: str) -> Iterator[str]:
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


def _digest(*sides: str) -> bytes:
    return hashlib.blake2b("\n".join(sides).encode(), digest_size=8).digest()
