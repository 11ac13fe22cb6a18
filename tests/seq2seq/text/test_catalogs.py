"""Message catalogs: which messages are sentences, and the errors if there are none."""

import polib
import pytest

from heed.errors import TaskError
from heed.seq2seq.text import catalogs


@pytest.fixture
def folder(tmp_path):
    """Return a folder of catalogs of two programs in German, and of one in French."""
    messages = {
        ("de", "one"): {
            "_Open": "Ö_ffnen",
            "&Save file": "Datei &speichern",
            "The file is not there.": "Die Datei ist nicht da.",
            "Twice": "Zweimal",
            "Please wait…": "Bitte warten …",
            "%d files": "%d Dateien",
            "two\nlines": "zwei\nZeilen",
            "snake_case and _more": "Schlangen_form und _mehr",
            "Name": "name",  # the same
            "Missing": "",
            "12 x": "12 x y",  # one letter
            "x" * 201: "zu lang",
            "bell\x07 rings": "Glocke läutet",
        },
        ("de", "two"): {"Twice": "Doppelt", "A\u00a0word": "Ein\u00a0Wort"},
        ("de", "iso_639"): {"Swahili language": "Suaheli"},
        ("fr", "one"): {"Twice": "Deux fois"},
    }
    for (language, program), entries in messages.items():
        place = tmp_path / language / "LC_MESSAGES"
        place.mkdir(parents=True, exist_ok=True)
        catalog = polib.MOFile()
        catalog.metadata = {"Content-Type": "text/plain; charset=utf-8"}
        catalog.extend(polib.MOEntry(msgid=s, msgstr=t) for s, t in entries.items())
        catalog.save(str(place / f"{program}.mo"))
    (tmp_path / "de" / "LC_MESSAGES" / "damaged.mo").write_bytes(b"\xde\x12\x04\x95\xff\xff")
    return tmp_path


def test_messages_that_read_like_words_come_once_and_in_order(folder):
    assert catalogs.read_pairs("de", [folder]) == [
        ("A word", "Ein Wort"),
        ("Open", "Öffnen"),
        ("Please wait", "Bitte warten"),
        ("Save file", "Datei speichern"),
        ("The file is not there.", "Die Datei ist nicht da."),
        ("Twice", "Zweimal"),
    ]
    assert catalogs.read_pairs("fr", [folder]) == [("Twice", "Deux fois")]
    assert catalogs.count_catalogs([folder]) == {"de": 4, "fr": 1}


def test_where_there_are_none_it_says_what_there_is(folder, tmp_path):
    with pytest.raises(TaskError, match=r"no catalogs of 'it' .* de, fr"):
        catalogs.read_pairs("it", [folder])
    with pytest.raises(TaskError, match="no catalogs of 'it' in any"):
        catalogs.read_pairs("it", [])
