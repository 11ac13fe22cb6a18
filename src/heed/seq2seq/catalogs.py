"""Real sentences and translations that a Linux machine has: the catalogs in which programs keep their messages."""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from heed._install import how_to_install
from heed.seq2seq.corpus import Pair
from heed.seq2seq.errors import TaskError

_LONGEST = 200  # letters: what is longer is help for a terminal, laid out by hand
_LETTERS = re.compile(r"[^\W\d_]")
# Places for values, markup, line breaks, keys of menus in brackets: no words of a sentence.
_CODE = re.compile(r"[_%<>{}\\|=@#^~`$]|\(_?[&_]|--")
_MNEMONIC = re.compile(r"[_&](?=\w)")  # "_File" and "&File" underline a letter of a menu
_NAMES = "iso_"  # catalogs of names of places and languages, which no one could guess


def find_folders() -> list[Path]:
    """Where machines keep catalogs; those of them that are there."""
    roots = [Path(sys.prefix), Path("/usr"), Path("/usr/local")]
    found = [root / "share" / name for root in roots for name in ("locale", "locale-langpack")]
    return [path for path in dict.fromkeys(found) if path.is_dir()]


def count_catalogs(where: Iterable[Path] | None = None) -> dict[str, int]:
    """How many catalogs there are of each language, the most first.

    Args:
        where: Folders to look in; None looks in `folders()`.
    """
    counts: dict[str, int] = {}
    for folder in find_folders() if where is None else where:
        for path in folder.glob("*/LC_MESSAGES/*.mo"):
            language = path.parts[-3]
            counts[language] = counts.get(language, 0) + 1
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))


def read_pairs(language: str, where: Iterable[Path] | None = None) -> list[Pair]:
    """English messages and their translations: what reads like words, each English one once.

    Left out are messages that hold places for values, markup or several lines, that are longer than 200 letters, or
    that are the same in both languages.

    Args:
        language: As the folders of catalogs are named: "de", "pt_BR".
        where: Folders to look in; None looks in `folders()`.

    Returns:
        (English, translation), in the order of the English ones.

    Raises:
        TaskError: if there are none; or without the polib library, which reads catalogs.
    """
    where = find_folders() if where is None else list(where)
    found: dict[str, str] = {}
    for path in sorted(p for folder in where for p in folder.glob(f"{language}/LC_MESSAGES/*.mo")):
        if not path.name.startswith(_NAMES):
            for source, target in _read_messages(path):
                found.setdefault(source, target)
    if not found:
        known = ", ".join(list(count_catalogs(where))[:12])
        raise TaskError(
            f"this machine has no catalogs of {language!r} in {', '.join(map(str, where)) or 'any folder'}"
            + (f"; it has {known}" if known else "")
        )
    return sorted(found.items())


def _read_messages(path: Path) -> Iterator[Pair]:
    try:
        import polib
    except ImportError:
        raise TaskError(f"this needs the polib library: {how_to_install('demo')}") from None
    try:
        catalog = polib.mofile(str(path))
    except (OSError, ValueError, struct.error):  # one that is damaged: there are others
        return
    for message in catalog:
        source, target = (_extract_words(side) for side in (message.msgid, message.msgstr))
        if source and target and source.casefold() != target.casefold():
            yield source, target


def _extract_words(text: str) -> str:
    """The words of a message, or nothing if it is more than that."""
    text = text.replace("\xa0", " ")  # a space that no line may be broken at
    if len(_MNEMONIC.findall(text)) == 1:
        text = _MNEMONIC.sub("", text)
    text = text.strip().removesuffix("…").removesuffix("...").strip()
    words = text.isprintable() and len(_LETTERS.findall(text)) >= 2
    return text if words and len(text) <= _LONGEST and not _CODE.search(text) else ""
