"""`heed data`."""

from heed.seq2seq.text import catalogs
from tests.cli.command import PAIRS, fails, piped
from tests.seq2seq import tiny


def test_data_is_checked_before_training(heed, tmp_path):
    source, target = tiny.write_parallel_text(tmp_path)
    status, out, err = heed("data", "check", source, target)
    assert (status, err) == (0, "")
    assert out == "60 lines, 60 different pairs\nno problems\n"
    target.write_text("\n" + target.read_text())
    status, out, err = heed("data", "check", source, target)
    assert (status, err) == (1, "")
    assert "1 with an empty side, left out of training: line 1\n" in out
    assert f"1 {source} ends before it, and both must have as many lines: line 61\n" in out
    fails(heed("data", "check", "nowhere", target), 1, "cannot read nowhere: No such file")
    fails(heed("data", "check", source), 2, "has one side")
    fails(heed("data", "check"), 2, "required: source (see heed data check --help)")
    fails(heed("data"), 2, "required: WHAT (see heed data --help)")


def test_catalogs_become_parallel_text(heed, tmp_path, monkeypatch):
    made = {"de": [("Open", "Öffnen"), ("Close", "Schließen")]}
    monkeypatch.setattr(catalogs, "read_pairs", lambda language: made[language])
    monkeypatch.setattr(catalogs, "count_catalogs", lambda: {"de": 3, "fr": 1})
    assert heed("data", "catalogs") == (0, "de  3 catalogs\nfr  1 catalog\n", "")
    expected = "2 pairs in texts/catalogs.en and texts/catalogs.de\n"
    fails(heed("data", "catalogs", "--to", "de", "--out", "texts"), 1, "existing folder, not texts")
    (tmp_path / "texts").mkdir()
    assert heed("data", "catalogs", "--to", "de", "--out", "texts") == (0, expected, "")
    written = [(tmp_path / "texts" / f"catalogs.{x}").read_text("utf-8") for x in ("en", "de")]
    assert written == ["Open\nClose\n", "Öffnen\nSchließen\n"]


def test_standard_input_is_checked(heed, monkeypatch):
    piped(monkeypatch, PAIRS)
    assert heed("data", "check", "-")[:2] == (
        0, "60 lines, 60 different pairs\nno problems\n"
    )  # fmt: skip
    piped(monkeypatch, PAIRS + b"one column\n")
    status, out, _ = heed("data", "check", "-")
    assert (status, "not 1: line 61" in out) == (1, True)
    piped(monkeypatch, PAIRS)
    fails(heed("data", "check", "-", "x"), 2, "standard input holds both sides: leave out x")
    piped(monkeypatch, b"")
    fails(heed("data", "check", "-"), 1, "standard input is empty")
