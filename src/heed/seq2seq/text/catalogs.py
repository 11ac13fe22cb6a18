"""Parallel text from the message catalogs that programs on Linux install."""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from heed.errors import TaskError
from heed.install import how_to_install
from heed.seq2seq.text.corpus import Pair

_LONGEST = 200  # letters: longer messages are help texts, laid out by hand
_LETTERS = re.compile(r"[^\W\d_]")
# Placeholders, markup, line breaks, menu keys in brackets.
_CODE = re.compile(r"[_%<>{}\\|=@#^~`$]|\(_?[&_]|--")
_MNEMONIC = re.compile(r"[_&](?=\w)")  # "_File" and "&File" underline a letter of a menu
_NAMES = "iso_"  # catalogs of place and language names


def _find_folders() -> list[Path]:
    """Return the folders in which this machine keeps catalogs."""
    roots = [Path(sys.prefix), Path("/usr"), Path("/usr/local")]
    folders = [root / "share" / name for root in roots for name in ("locale", "locale-langpack")]
    return [path for path in dict.fromkeys(folders) if path.is_dir()]


def count_catalogs(where: Iterable[Path] | None = None) -> dict[str, int]:
    """Count the catalogs of each language in folders, by default those of this machine; the most first."""
    counts: dict[str, int] = {}
    for folder in _find_folders() if where is None else where:
        for path in folder.glob("*/LC_MESSAGES/*.mo"):
            language = path.parts[-3]
            counts[language] = counts.get(language, 0) + 1
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))


def read_pairs(language: str, where: Iterable[Path] | None = None) -> list[Pair]:
    """Return English messages and their translations, each English one once.

    Messages with placeholders, markup or several lines, of more than 200 letters, or equal in both languages are left
    out.

    Args:
        language: as catalog folders are named: "de", "pt_BR".
        where: folders to search; None: those of this machine.

    Returns:
        (English, translation), sorted by the English ones.

    Raises:
        TaskError: if there are none; or without polib, which reads catalogs.
    """
    where = _find_folders() if where is None else list(where)
    pairs: dict[str, str] = {}
    for path in sorted(p for folder in where for p in folder.glob(f"{language}/LC_MESSAGES/*.mo")):
        if not path.name.startswith(_NAMES):
            for source, target in _read_messages(path):
                pairs.setdefault(source, target)
    if not pairs:
        known = ", ".join(list(count_catalogs(where))[:12])
        raise TaskError(
            f"this machine has no catalogs of {language!r} in {', '.join(map(str, where)) or 'any folder'}"
            + (f"; it has {known}" if known else "")
        )
    return sorted(pairs.items())


def _read_messages(path: Path) -> Iterator[Pair]:
    try:
        import polib
    except ImportError:
        raise TaskError(f"this needs the polib library: {how_to_install('demo')}") from None
    try:
        catalog = polib.mofile(str(path))
    except (OSError, ValueError, struct.error):  # damaged: there are others
        return
    for message in catalog:
        source, target = (_extract_words(side) for side in (message.msgid, message.msgstr))
        if source and target and source.casefold() != target.casefold():
            yield source, target


def _extract_words(text: str) -> str:
    """Return the words of a message, or nothing if it holds more than words."""
    text = text.replace("\xa0", " ")  # no-break space
    if len(_MNEMONIC.findall(text)) == 1:
        text = _MNEMONIC.sub("", text)
    text = text.strip().removesuffix("…").removesuffix("...").strip()
    words = text.isprintable() and len(_LETTERS.findall(text)) >= 2
    return text if words and len(text) <= _LONGEST and not _CODE.search(text) else ""
