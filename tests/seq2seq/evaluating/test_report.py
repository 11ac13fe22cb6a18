"""The report of an evaluation: what stands in the page, and when there is none."""

import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from heed.seq2seq import Compared, NumbersTask, TaskError, Translator, evaluate, write_report
from heed.seq2seq.evaluating import report as report_module
from heed.seq2seq.evaluating.evaluation import Answer, Evaluation
from heed.seq2seq.evaluating.report import mark_differences
from heed.seq2seq.tasks import number_words
from heed.seq2seq.tokens.tokenizer import END_ID


def data_of(path):
    """Return the data that the page's script reads."""
    text = path.read_text(encoding="utf-8")
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1]
    )


def plain(parts):
    return "".join(text for text, _ in parts)


@pytest.fixture(scope="module")
def translator(finished_run):
    return Translator(finished_run)


@pytest.fixture
def report(translator, tmp_path):
    """Write a report; return its data."""

    def write(evaluation, *other, **options):
        return data_of(write_report(tmp_path / "r.html", translator, evaluation, *other, **options))

    return write


def evaluation_of(*said, **figures):
    """Return answers with what is right, each with the tokens of "12 -> ..."; their sources are "0", "1", ..."""
    answers = [
        Answer(str(i), text, reference, "en", SOURCE, [6, 7, END_ID])
        for i, (text, reference) in enumerate(said)
    ]
    return Evaluation(answers, seconds=1.0, **figures)


SOURCE = NumbersTask(("en", "de")).encode("12", "en")
PAIRS = (
    ("one two three", "one two three"),  # right
    ("one two", "one two three"),
    ("", "seven"),  # the worst
    ("nine", "nine"),  # right, and shorter than the other
    ("one two threes", "one two three"),
)


def test_the_worst_are_wrong_and_the_best_are_the_rest(report):
    found = report(evaluation_of(*PAIRS), sentences=2)
    assert [one["source"] for one in found["worst"]] == ["2", "1"]
    assert [one["source"] for one in found["best"]] == ["0", "3"], "of equals the longer"
    scores = [one["translations"][0]["score"] for one in found["worst"] + found["best"]]
    assert scores[0] == 0 < scores[1] < scores[2] == scores[3] == 100
    assert (found["wrong"], sum(all_ for all_, _ in found["bins"][0])) == (3, 5)
    assert found["bins"][0][-1][1] == 2
    assert found["bins"][0][0] == [1, 0]


@pytest.mark.parametrize(
    ("text", "beside", "wanted"),
    [
        ("a b c", "a x c", [("a ", False), ("b", True), (" c", False)]),
        ("a b c d", "a d", [("a ", False), ("b c", True), (" d", False)]),
        ("a  b", "a b", [("a ", False), (" b", False)]),
        ("sixty-two", "six hundred", [("sixty-two", True)]),
        ("", "x", []),
        ("x", "", [("x", True)]),
    ],
)
def test_what_the_other_lacks_is_marked(text, beside, wanted):
    found = mark_differences(text, beside)
    assert found == wanted
    assert plain(found) == text


def test_figures_signatures_and_notes(report):
    figures = {
        "bleu": 41.25,
        "chrf": 60.5,
        "perplexity": 3.456,
        "signatures": {"BLEU": "nrefs:1|b", "chrF": "nrefs:1|c"},
        "extra": {"numbers below 1,000": evaluation_of(*PAIRS[:2])},
        "left_out": ["line 2: empty"],
        "cut": 1,
        "given_pairs": True,
    }
    found = report(evaluation_of(*PAIRS, **figures), sentences=0)
    said = {one["name"]: (one["values"], one["note"]) for one in found["figures"]}
    assert said == {
        "right to the letter": (["40.0 %"], "2 of 5"),
        "BLEU": (["41.2"], "nrefs:1|b"),
        "chrF": (["60.5"], "nrefs:1|c"),
        "perplexity": (["3.46"], "per token of the references"),
        "numbers below 1,000": (["50.0 %"], "1 of 2, training draws on these"),
    }
    assert found["about"].startswith("5 pairs that were given, step 12, decoded in 1.0 s")
    assert found["notes"] == [
        "Sources that are too long and were cut: 1",
        "Pairs that were left out: 1; the first: line 2: empty",
    ]


def test_a_run_and_another(report, translator, tmp_path):
    first = evaluation_of(*PAIRS)
    second = evaluation_of(*[(reference, reference) for _, reference in PAIRS])
    other = Compared("other", second, ["BLEU 1.0 and 2.0: +1.0 (p = 0.5)"])
    found = report(first, other, sentences=1)
    assert found["runs"] == [str(translator.run.path), "other"]
    assert found["figures"][0]["values"] == ["40.0 %", "100.0 %"]
    assert found["notes"] == other.comparisons
    worst = found["worst"][0]
    assert [plain(one["parts"]) for one in worst["translations"]] == ["", "seven"]
    assert [one["score"] for one in worst["translations"]] == [0, 100]
    assert found["bins"][1][-1] == [5, 5]
    with pytest.raises(TaskError, match="on the same pairs only"):
        write_report(tmp_path / "x.html", translator, first, Compared("o", evaluation_of(PAIRS[0])))
    assert not (tmp_path / "x.html").exists()


def test_markup_stays_text_and_nothing_is_fetched(translator, tmp_path, monkeypatch):
    nasty = "</script><img src=x onerror=alert(1)>{{style}}\ud800"
    monkeypatch.setattr(translator.run, "path", tmp_path / "<img src=x>")
    path = write_report(tmp_path / "r.html", translator, evaluation_of((nasty, "<b>right</b>")))
    text = path.read_text(encoding="utf-8")
    assert "<img" not in text
    assert "<b>" not in text
    assert plain(data_of(path)["worst"][0]["translations"][0]["parts"]) == nasty.replace(
        "\ud800", "?"
    )
    assert "default-src 'none'" in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_the_tokens_that_were_written_are_those_that_are_drawn(report, translator, monkeypatch):
    monkeypatch.setattr(number_words, "evaluation_numbers", lambda: np.array([5, 60, 700, 81_234]))
    monkeypatch.setattr(translator.task, "extra_evaluations", dict)
    evaluation = evaluate(translator)
    answers = {(answer.source, answer.group): answer for answer in evaluation.answers}
    for one in report(evaluation, sentences=3)["worst"]:
        answer, drawing = answers[one["source"], one["group"]], one["attention"]
        cross = next(layer for layer in drawing["layers"] if layer["kind"] == "cross")
        digits = answer.source.replace(",", "")
        assert drawing["sequences"][cross["keys"]] == [one["group"], *digits]
        written = drawing["sequences"][cross["rows"]]
        ids = [i for i in answer.translation_ids if i > 0]
        assert len(written) == len(ids)
    wrong = evaluation.to_dict()["wrong"][0]
    assert set(wrong) == {"source", "translation", "reference", "group"}


def test_no_sentence_appears_twice_and_drawings_are_bounded(report, monkeypatch):
    (first,) = report(evaluation_of(*PAIRS), sentences=1)["worst"]
    monkeypatch.setattr(report_module, "_MOST", 2 * len(first["attention"]["weights"]) + 10)
    found = report(evaluation_of(*PAIRS))
    assert [one["source"] for one in found["worst"]] == ["2", "1", "4"]
    assert [one["source"] for one in found["best"]] == ["0", "3"]
    drawn = [bool(x["attention"]) for x in found["worst"] + found["best"]]
    assert drawn == [True, True, False, False, False]
    assert "Only the first sentences have their attention" in found["withoutAttention"]


def test_a_model_without_attention_has_no_drawings(translator, tmp_path):
    model = SimpleNamespace(config=SimpleNamespace(attention="none"))
    which = {"weights": {"step": 12, "averaged": [6, 12]}, "step": 12}
    without = SimpleNamespace(run=translator.run, model=model, task=translator.task, **which)
    found = data_of(write_report(tmp_path / "r.html", without, evaluation_of(*PAIRS)))
    assert found["withoutAttention"] == "This model has no attention to show."
    assert not any(one["attention"] for one in found["worst"])
    assert ", the mean of the steps 6, 12, " in found["about"]


def test_without_sacrebleu(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(TaskError, match="needs the sacrebleu library: pip install"):
        report(evaluation_of(*PAIRS))


def test_an_evaluation_without_tokens_has_no_drawings(report):
    bare = Evaluation([Answer("1", "one", "two", "en")], seconds=1.0)
    assert report(bare)["worst"][0]["attention"] is None


def test_of_nothing(report):
    found = report(Evaluation([], seconds=0.0))
    assert (found["worst"], found["best"], found["wrong"]) == ([], [], 0)
