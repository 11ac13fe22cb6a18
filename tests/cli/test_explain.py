"""`heed explain`."""

from html import escape

import numpy as np

from tests.inspect import test_page as page_reader


def test_explain_makes_a_page_of_every_head(heed, run_path, tmp_path):
    files = ("--out", tmp_path / "a.html", "--png", tmp_path / "a.png")
    status, out, err = heed("explain", run_path, "1 2 3 4", "--language", "de", *files)
    assert (status, err) == (0, "heed: the translation is cut at the most tokens of this run\n")
    translation = heed("translate", run_path, "1234", "--language", "de")[1].strip()
    assert out.splitlines() == [
        translation,
        f"every head: {tmp_path / 'a.html'}",
        f"picture: {tmp_path / 'a.png'}",
    ]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert f"<title>1 2 3 4 → {escape(translation)}</title>" in text
    data, weights = page_reader.read(text)
    assert list(weights) == ["encoder 1", "decoder 1", "cross 1"]
    assert [layer["kind"] for layer in data["layers"]] == ["self", "causal", "cross"]
    for layer in data["layers"]:
        rows, columns = data["sequences"][layer["rows"]], data["sequences"][layer["keys"]]
        assert rows == ["de", "1", "2", "3", "4"] or layer["kind"] != "self"
        assert columns[0] == ("start" if layer["kind"] == "causal" else "de")
        np.testing.assert_allclose(weights[layer["name"]].sum(-1), 1, atol=0.03)
    assert heed("explain", run_path, "7")[1].endswith(f"{run_path / 'attention.html'}\n")


def test_a_picture_in_svg(heed, run_path, tmp_path):
    status, out, _ = heed("explain", run_path, "7", "--png", tmp_path / "q.svg")
    assert status == 0
    assert out.endswith(f"picture: {tmp_path / 'q.svg'}\n")
    drawn, translation = (tmp_path / "q.svg").read_text(), out.splitlines()[0]
    assert drawn.startswith("<?xml")
    # matplotlib notes each text beside its outlines.
    assert [x for x in ("Attention to 7", f"while writing {translation}") if x not in drawn] == []
