"""Judging runs by pairs that are given, and one beside another."""

import itertools
import random
from types import SimpleNamespace

import pytest

from heed.seq2seq import Corpus, TaskError, compare, evaluate
from heed.seq2seq.evaluating import evaluation as evaluation_module
from heed.seq2seq.evaluating.evaluation import Answer, Evaluation
from heed.seq2seq.tokens.tokenizer import END_ID
from tests.slow import slow


class Echo:
    """A translator that says what it is asked; from the word "wrong" on it says nothing."""

    def __init__(self):
        def check_language(language):
            if language:
                raise TaskError("there is no choice of languages")

        def encode(line, language):
            if not line:
                raise TaskError("a sentence must not be empty")
            return line.split()

        self.task = SimpleNamespace(
            encode=encode,
            check_language=check_language,
            normalize_target=lambda text: text,
            decode=lambda rows: [" ".join(row[:-1]) for row in rows],
        )

    def decode(self, rows):
        return [[*itertools.takewhile(lambda word: word != "wrong", row), END_ID] for row in rows]


def test_pairs_that_are_given(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text(
        "the cat sat on the mat\tthe cat sat on the mat\n\tx\ny\t\nis wrong\tis wrong\n"
    )
    found = evaluate(Echo(), Corpus(path))
    assert [answer.translation for answer in found.answers] == ["the cat sat on the mat", "is"]
    assert (found.right, found.exact) == (1, 0.5)
    assert found.left_out == [
        "line 2: a sentence must not be empty",
        "line 3: its translation is empty",
    ]
    report = found.report()
    assert report[0].startswith("1 of 2 answers are right to the letter: 50.00 %")
    assert report[1].startswith("BLEU ")
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in report[2]
    assert report[-1] == "2 pairs were left out; the first: line 2: a sentence must not be empty"
    figures = found.to_dict()
    assert figures["left_out"] == found.left_out
    assert set(figures["signatures"]) == {"BLEU", "chrF"}
    with pytest.raises(TaskError, match="no choice"):
        evaluate(Echo(), Corpus(path), "de")
    path.write_text("\tx\n")
    with pytest.raises(TaskError, match="no pair that can be translated"):
        evaluate(Echo(), Corpus(path))


def evaluation_of(references, share, seed):
    """Return answers in which so many words are wrong."""
    chance = random.Random(seed)
    answers = [
        Answer(
            str(i), " ".join(w if chance.random() > share else "z" for w in text.split()), text, ""
        )
        for i, text in enumerate(references)
    ]
    return Evaluation(answers, seconds=1.0)


def test_a_better_run_is_distinguished_from_chance():
    chance = random.Random(0)
    references = [" ".join(chance.choices("abcdefgh", k=10)) for _ in range(80)]
    good, same, bad = (
        evaluation_of(references, share, seed) for share, seed in ((0.1, 1), (0.1, 2), (0.3, 3))
    )
    bleu, chrf = compare(bad, good)
    assert (bleu.metric, chrf.metric) == ("BLEU", "chrF")
    assert bleu.scores[1] > bleu.scores[0] + 20
    assert max(bleu.p_value, chrf.p_value) < 0.01
    assert str(bleu).startswith(f"BLEU {bleu.scores[0]:.1f} and {bleu.scores[1]:.1f}: +")
    wanted = evaluation_module._score_corpus(good.answers, "auto")
    assert bleu.scores[1] == pytest.approx(wanted["bleu"])
    assert chrf.scores[1] == pytest.approx(wanted["chrf"])
    assert min(one.p_value for one in compare(good, same)) > 0.05
    with pytest.raises(TaskError, match="on the same pairs only"):
        compare(good, evaluation_of(references[:-1], 0.1, 1))


@pytest.mark.parametrize(
    "text", ["ร้อยสามแอปเปิ้ล", *slow(["one hundred and something", "一百零三个苹果", "one"])]
)
def test_runs_with_equal_answers_do_not_differ(text):
    """Right ones, wrong ones, and the same number of right ones at other places."""
    references = [f"{text} {i}" for i in range(30)]
    right, wrong = (evaluation_of(references, share, 1) for share in (-1.0, 2.0))
    half, other = (
        Evaluation(
            [
                (a if i % 2 == odd else b)
                for i, (a, b) in enumerate(zip(right.answers, wrong.answers, strict=True))
            ],
            1.0,
        )
        for odd in range(2)
    )
    for first, second in ((right, right), (wrong, wrong), (half, half)):
        assert [one.p_value for one in compare(first, second)] == [1.0, 1.0]
    exact_or_bleu, chrf = compare(wrong, right)
    assert exact_or_bleu.metric == ("exact" if text == "one" else "BLEU")
    assert exact_or_bleu.scores[1] == pytest.approx(100)
    assert max(exact_or_bleu.p_value, chrf.p_value) < 0.01
    if text == "one":  # as many right answers, so the same share of them
        assert compare(half, other)[0].p_value == 1.0
