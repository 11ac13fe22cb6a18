"""Normalisation of text before it becomes tokens: one Unicode form, and white space."""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import NamedTuple

from heed.config import one_of
from heed.errors import convert_value_errors

_FORMS = {"nfc": "NFC", "nfkc": "NFKC", "none": None}  # Unicode's names
# White space other than U+0020: tabs, line breaks, no-break and wide spaces.
WHITE_SPACE = "".join(c for c in map(chr, range(0x3001)) if c.isspace() and c != " ")
NO_BREAK = "\xa0\u2007\u202f"  # parts of words: "10 km"
# No token can hold these: SentencePiece writes U+2581 for a space, and ends its strings at U+0000.
UNUSABLE = "\0\u2581"


class Normalizer(NamedTuple):
    r"""Brings a text into the form that a run was trained on.

    Example:
        >>> Normalizer("NFC", "\t")(" cafe\u0301\tau lait")
        'café au lait'
    """

    form: str | None = None  # "NFC", "NFKC", or None: characters stay as they are
    spaces: str = ""  # characters that count as a space

    def __call__(self, text: str) -> str:
        """Return the text in its form, without outer spaces."""
        if self.form is not None:
            text = unicodedata.normalize(self.form, text)  # type: ignore[arg-type]
        if self.spaces:
            text = _match_any(self.spaces).sub(" ", text)
        return text.strip()


@functools.cache
def _match_any(letters: str) -> re.Pattern[str]:
    return re.compile(f"[{re.escape(letters)}]")


def find_form(name: str) -> str | None:
    """Return Unicode's name of a form, None for "none".

    Raises:
        TaskError: if there is no such form.
    """
    with convert_value_errors():
        one_of(_FORMS).check("unicode_form", name)
    return _FORMS[name]


def name_form(form: str | None) -> str:
    """Return the option for one of Unicode's forms; "none" for None."""
    return next(name for name, known in _FORMS.items() if known == form)


def spaces_beside(kept: str) -> str:
    """Return the characters that count as a space in a text that holds `kept` as they are."""
    return UNUSABLE + "".join(c for c in WHITE_SPACE if c not in kept)
