"""`heed evaluate`."""

import json
import shutil
import sys

import numpy as np

from heed.seq2seq.tasks import number_words
from heed.seq2seq.tasks.numbers_task import NumbersTask
from tests.cli.command import fails, piped


def test_evaluate_writes_the_figures(heed, run_path, tmp_path, monkeypatch):
    monkeypatch.setattr(number_words, "evaluation_numbers", lambda: np.array([1, 20, 300]))
    monkeypatch.setattr(NumbersTask, "extra_evaluations", dict)
    status, out, _ = heed("evaluate", run_path)
    assert status == 0
    assert "of 6 held-out answers are right" in out
    figures = json.loads((run_path / "evaluation.json").read_text())
    assert (figures["pairs"], figures["weights"]) == (6, {"step": 12})
    other = tmp_path / "averaged"
    shutil.copytree(run_path, other)
    assert heed("average", other)[0] == heed("evaluate", other)[0] == 0
    figures = json.loads((other / "evaluation.json").read_text())
    assert figures["weights"] == {"step": 12, "averaged": [9, 12]}, "to be told apart"
    piped(monkeypatch, b"1\tone\n20\ttwenty\n")
    words = ("--source", "-", "--beam-size", "2", "--ensemble", run_path)
    assert heed("evaluate", other, *words)[0] == 0
    figures = json.loads((other / "evaluation.json").read_text())
    assert (figures["pairs"], figures["decoding"]["beam_size"]) == (2, 2)
    assert figures["ensemble"] == [{"run": str(run_path), "weights": {"step": 12}}]


def test_evaluation_on_pairs_that_are_given(heed, run_path, tmp_path):
    (tmp_path / "pairs.tsv").write_text("7\tseven\n8\teight\n")
    options = ["--source", "pairs.tsv", "--compare", run_path]
    status, out, err = heed("evaluate", run_path, *options)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert " of 2 answers are right" in lines[0]
    assert lines[-3] == f"{run_path} and {run_path}:"
    assert lines[-2].startswith("  exact "), "BLEU has no meaning for single words"
    assert "BLEU has no meaning for texts this short: 0 of 2 references" in lines[1]
    assert "+0.0 (p = " in lines[-1]
    both = heed("evaluate", run_path, *options, "--max-length", "2")[1].splitlines()
    assert both[-1] != lines[-1], "the option says something"
    assert "+0.0 (p = " in both[-1], "of both runs"
    fails(heed("evaluate", run_path, "--bleu-tokenizer", "ja"), 2, "invalid choice: 'ja'")
    fails(heed("evaluate", run_path, "--target", "x"), 2, "--target goes with --source")
    fails(heed("evaluate", run_path, "--language", "de"), 2, "--language goes with --source")
    fails(heed("evaluate", run_path, "--source", "none.txt"), 2, "has one side")


def test_evaluate_writes_a_report(heed, run_path, tmp_path, monkeypatch):
    (tmp_path / "pairs.tsv").write_text("7\tseven\n8\teight\n")
    options = ["--source", "pairs.tsv"]
    status, out, err = heed("evaluate", run_path, *options, "--report")
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == f"report: {run_path / 'report.html'}"
    assert "2 pairs that were given" in (run_path / "report.html").read_text(encoding="utf-8")
    beside = ["--report", "a b.html", "--compare", run_path]
    status, out, err = heed("evaluate", run_path, *options, *beside)
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == "report: a b.html"
    assert "p = " in (tmp_path / "a b.html").read_text(encoding="utf-8")
    monkeypatch.setattr("heed.cli._evaluate.open_translator", lambda *_: 1 / 0)  # said before
    for path, refused in (("pairs.tsv", 2), ("no/a.html", 1), ("", 2), (".", 2)):
        wanted = f"--report must be an .html file in an existing folder, not {path or '.'}"
        fails(heed("evaluate", run_path, *options, "--report", path), refused, wanted)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    fails(heed("evaluate", run_path, "--report"), 1, "--report needs the sacrebleu library: pip")


def test_evaluate_says_that_bleu_is_left_out(heed, run_path, tmp_path, monkeypatch):
    (tmp_path / "pairs.tsv").write_text("7\tseven\n")
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    status, out, err = heed("evaluate", run_path, "--source", "pairs.tsv")
    assert (status, "BLEU" in out) == (0, False)
    assert err.startswith("heed: BLEU and chrF are left out without the sacrebleu library: pip ")
