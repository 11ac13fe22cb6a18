"""A translation that ends because of the length bound says so; those of the tiny run never end by themselves."""

import json

import pytest

from heed.seq2seq import evaluate
from heed.seq2seq.tokens.tokenizer import END_ID, PAD_ID
from heed.seq2seq.translating.translator import Translation, describe_cut, is_cut

CUT = "the translation is cut at 20 tokens: --max-length allows more"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], ""),  # a blank line
        ([[5, END_ID, PAD_ID]], ""),
        ([[END_ID]], ""),
        ([[PAD_ID, PAD_ID]], ""),  # a beam that met no further sequence
        ([[5, 6]], "the translation is cut at 2 tokens: --max-length allows more"),
        ([[5, 6, PAD_ID]], "the translation is cut at 2 tokens: --max-length allows more"),
        (
            [[5, END_ID], [5, 6], [5, 7]],
            "2 translations are cut at 2 tokens: --max-length allows more",
        ),
    ],
)
def test_what_is_cut(rows, said):
    translations = [Translation("", ids) for ids in rows]
    assert [one.cut for one in translations] == [is_cut(ids) for ids in rows]
    assert describe_cut(translations) == said


def test_lines_and_a_text(heed, run_path):
    status, _, err = heed("translate", run_path, stdin="1\n\n22\nx\n")
    assert status == 1
    lines = err.splitlines()
    assert lines[0].startswith("heed: line 4: a number must be digits")
    assert lines[1:] == [f"heed: line {number}: {CUT}" for number in (1, 3)]
    status, _, err = heed("translate", run_path, "1")
    assert (status, err) == (0, f"heed: {CUT}\n")
    options = "--quiet --beam-size 3 --n-best 2 --max-length 3 --prefix one".split()
    status, _, err = heed("translate", run_path, *options, stdin="7\n")
    said = "heed: line 1: 2 translations are cut at 3 tokens: --max-length allows more\n"
    assert (status, err) == (0, said)


def test_files(heed, run_path, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("1\n\n3\nx\n5\n")
    words = ["translate", run_path, "--input", "in/*.txt", "--output", "out", "--shard-lines", "2"]
    status, _, err = heed(*words)
    assert status == 1
    said = [line for line in err.splitlines() if "line " in line]
    assert len(said) == 4
    assert [line for line in said if "line 4: a number must be digits" in line]
    assert {f"heed: in/a.txt, line {number}: {CUT}" for number in (1, 3, 5)} < set(said)
    assert "1 could not be translated" in err


def test_a_column(run_path):
    """Of Ray Data; Ray is not needed for one batch."""
    from heed.seq2seq.ray._translator import Translator

    found = Translator(run_path)({"text": ["1", "", None, "x"]})
    assert found["problem"][0] == CUT
    assert list(found["problem"][1:3]) == ["", "it is missing"]
    assert "must be digits" in found["problem"][3]


def test_an_evaluation(run_path, tmp_path):
    from heed.seq2seq import Corpus, RunFolder, Translator

    (tmp_path / "pairs.tsv").write_text("7\tseven\n8\teight\n")
    found = evaluate(Translator(RunFolder.open(run_path)), Corpus(tmp_path / "pairs.tsv"))
    assert found.cut_answers == 2
    assert "2 of the translations were cut at the most tokens (--max-length)" in found.report()
    assert json.loads(json.dumps(found.to_dict()))["cut_answers"] == 2
