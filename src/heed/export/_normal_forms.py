"""Unicode's normal forms as regular expressions of RE2, for TensorFlow's graphs, which cannot normalise."""

from __future__ import annotations

import sys
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from typing import Literal


def white_space() -> str:
    """Return a class of the characters that `str.strip` takes away."""
    return match_any(c for c in map(chr, range(sys.maxunicode + 1)) if c.isspace())


def abnormal(form: Literal["NFC", "NFKC"]) -> list[str]:
    """Return patterns, one of which is in every text that a normal form changes, and none in any other.

    A text changes if a character has another form, if two characters compose (perhaps across marks of lower classes),
    or if marks are not in the order of their classes.

    Args:
        form: "NFC" or "NFKC".

    Source: Unicode Standard Annex 15, "Unicode normalization forms".
    """
    letters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    changes = {c for c in letters if unicodedata.normalize(form, c) != c}
    pairs = [x for c in letters if len(x := unicodedata.decomposition(c).split()) == 2]
    composed = [[chr(int(code, 16)) for code in x] for x in pairs if x[0][0] != "<"]
    composed = [x for x in composed if len(unicodedata.normalize("NFC", "".join(x))) == 1]
    candidates = {unicodedata.normalize("NFC", "".join(x)) for x in composed} | {
        x[0] for x in composed
    }
    firsts = {
        second: [
            c for c in candidates - changes if unicodedata.normalize(form, c + second) != c + second
        ]
        for second in {x[1] for x in composed}
    }
    classes: dict[int, list[str]] = defaultdict(list)
    for c in letters:
        if number := unicodedata.combining(c):
            classes[number].append(c)

    def lower(number: int) -> list[str]:
        return [c for one, marks in classes.items() if one < number for c in marks]

    # Hangul composes by rule, not by the table.
    patterns = [match_any(changes), "[\\x{1100}-\\x{1112}][\\x{1161}-\\x{1175}]"]
    patterns.append(f"{match_any(map(chr, range(0xAC00, 0xD7A4, 28)))}[\\x{{11A8}}-\\x{{11C2}}]")
    for second, first in sorted(firsts.items()):
        between = lower(unicodedata.combining(second))
        across = f"{match_any(between)}*" if between else ""
        patterns.append(f"{match_any(first)}{across}{match_any(second)}")
    for number, marks in classes.items():
        if before := lower(number):
            patterns.append(f"{match_any(marks)}{match_any(before)}")
    return patterns


def match_any(characters: Iterable[str]) -> str:
    """Return a class of these characters."""
    ranges: list[list[int]] = []
    for code in sorted(map(ord, characters)):
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[" + "".join(f"\\x{{{first:X}}}-\\x{{{last:X}}}" for first, last in ranges) + "]"
