"""Fonts of this machine for the letters that matplotlib's own font lacks, such as Chinese, Thai and Hindi ones."""

from __future__ import annotations

import functools
import unicodedata
from typing import Any

_MOST_NAMED = 10  # letters in a message
_INVISIBLE = ("Cc", "Cf", "Mn", "Zs", "Zl", "Zp")  # categories
_STAND_IN = "Last Resort"  # matplotlib's font of boxes has all letters


def set_fonts(figure: Any) -> str:
    """Give each text of a figure fonts that have its letters; return what to say about letters that none has."""
    from matplotlib.text import Text

    lost: set[str] = set()
    for text in figure.findobj(Text):
        if letters := _missing(text.get_text(), tuple(text.get_fontfamily())):
            fonts = _find_fonts(letters)
            text.set_fontfamily([*text.get_fontfamily(), *fonts])
            lost |= _missing(text.get_text(), tuple(text.get_fontfamily()))
    lost = {c for c in lost if unicodedata.category(c) not in _INVISIBLE}
    if not lost:
        return ""
    named = " ".join(sorted(lost)[:_MOST_NAMED])
    more = f" and {len(lost) - _MOST_NAMED:,} more" if len(lost) > _MOST_NAMED else ""
    return f"the picture shows boxes in place of {named}{more}: no installed font has them; those of Noto do"


def _missing(text: str, families: tuple[str, ...]) -> frozenset[str]:
    """Return the letters of a text that no font of these families has."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

    if text.isascii():
        return frozenset()
    known = {"sans-serif", "serif", "monospace", *(entry.name for entry in fontManager.ttflist)}
    names = [name for name in families if name in known] or ["sans-serif"]
    fonts = [get_font(findfont(FontProperties(family=[name]))) for name in names]
    letters = {c for c in text if not c.isspace()}
    return frozenset(c for c in letters if not any(font.get_char_index(ord(c)) for font in fonts))


@functools.lru_cache
def _find_fonts(letters: frozenset[str]) -> tuple[str, ...]:
    """Return the names of fonts of this machine that together have as many of the letters as possible."""
    from matplotlib.font_manager import fontManager, get_font

    def rank(entry: Any) -> tuple[bool, bool, bool, str]:
        plain = (entry.style != "normal", entry.weight not in (400, "normal", "regular"))
        return ("Sans" not in entry.name, *plain, entry.name)

    found: list[str] = []
    left = set(letters)
    for entry in sorted(fontManager.ttflist, key=rank):
        if not left:
            break
        # Only the first font of a file can be loaded everywhere; matplotlib scales no bitmaps.
        if (
            entry.name.startswith(_STAND_IN)
            or getattr(entry, "index", False)
            or entry.name in found
        ):
            continue
        try:
            font = get_font(entry.fname)
        except (OSError, RuntimeError):  # it was removed, or is damaged
            continue
        known = {c for c in left if font.get_char_index(ord(c))} if font.scalable else set()
        if known:
            found.append(entry.name)
            left -= known
    return tuple(found)
