"""Scores: the tokenizer of BLEU by script, texts that are too short for it, unknown tokens."""

import math

import pytest
import sacrebleu

from heed.seq2seq import TaskError, TextTask
from heed.seq2seq.text import scoring
from heed.seq2seq.text.scoring import choose_bleu_tokenizer, choose_metrics
from heed.seq2seq.tokens.unknown_tokens import describe_unknown, share_unknown
from tests.seq2seq import tiny

# Right translations by script, and their tokenizer where everything is installed.
TEXTS = {
    "German": (["Die Datei wurde nicht gefunden."], "13a"),
    "Persian": (["می‌خواهم به خانه بروم امروز"], "13a"),
    "Hindi": (["मैं आज घर जाना चाहता हूँ"], "13a"),
    "Chinese": (["我们明天去北京。", "他不在家"], "zh"),
    "Chinese with English words": (["请使用 TensorFlow 训练 Transformer 模型"], "zh"),
    "Chinese and English": (["我们明天去北京", "we go to Beijing tomorrow"], "zh"),
    "English with a Chinese name": (["in the morning we go to 京 by train with all of our many friends " * 2], "13a"),
    "Japanese": (["明日は東京に行きます。", "東京大学"], "ja-mecab"),
    "Korean": (["저는 내일 서울에 갑니다."], "ko-mecab"),
    "Thai": (["พรุ่งนี้เราไปกรุงเทพ"], "flores200"),
    "Khmer": (["ខ្ញុំទៅផ្ទះនៅថ្ងៃនេះ"], "flores200"),
    "Burmese": (["ကျွန်တော်ဒီနေ့အိမ်ပြန်မယ်"], "flores200"),
    "Japanese and Korean": (["明日は東京に行きます", "저는 내일 서울에 갑니다"], "flores200"),
    "emoji": (["😀 🎉 👍 😀 🎉"], "13a"),
}  # fmt: skip


OPTIONAL = {"ja-mecab", "ko-mecab", "flores200"}


@pytest.mark.parametrize("name", TEXTS)
def test_the_tokenizer_follows_the_script(name, monkeypatch):
    references, tokenizer = TEXTS[name]
    monkeypatch.setattr(scoring, "_find_lack", lambda _: "")
    assert choose_bleu_tokenizer(references) == tokenizer
    monkeypatch.setattr(scoring, "_find_lack", lambda name: OPTIONAL & {name} and "it")
    missing = tokenizer in OPTIONAL
    assert choose_bleu_tokenizer(references) == ("char" if missing else tokenizer)
    metrics = choose_metrics(references)  # of a machine that lacks all that may be missing
    assert metrics.score(references, references) == pytest.approx({"BLEU": 100, "chrF": 100})
    assert f"tok:{'char' if missing else tokenizer}|" in str(
        metrics.by_name["BLEU"].get_signature()
    )


def test_a_tokenizer_that_is_named(tmp_path, monkeypatch):
    from sacrebleu.tokenizers import tokenizer_spm

    assert choose_bleu_tokenizer(TEXTS["Chinese"][0], "intl") == "intl"
    assert set(scoring.BLEU_TOKENIZERS) - {"auto"} <= set(sacrebleu.BLEU.TOKENIZERS)
    with pytest.raises(TaskError, match=r"one of 'auto', '13a', .*='ja'"):
        choose_bleu_tokenizer([], "ja")
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))
    with pytest.raises(TaskError, match=r"flores200 needs .*, which sacrebleu downloads with: "):
        choose_bleu_tokenizer([], "flores200")
    models = tmp_path / "models"
    models.mkdir()
    (models / tokenizer_spm.SPM_MODELS["flores200"]["url"].rpartition("/")[2]).touch()
    assert choose_bleu_tokenizer(TEXTS["Thai"][0]) == "flores200"

    def missing(**_):
        raise RuntimeError

    monkeypatch.setattr(sacrebleu, "BLEU", missing)
    with pytest.raises(TaskError, match=r"pip install 'sacrebleu\[ja\]'"):
        choose_bleu_tokenizer([], "ja-mecab")


def test_the_references_are_what_translations_are_measured_against():
    """Right words, half of them: the length alone costs a factor of e."""
    references = ["one two three four five six seven eight"]
    half = choose_metrics(references).score(["one two three four"], references)
    assert half["BLEU"] == pytest.approx(100 / math.e)


@pytest.mark.parametrize("long", [0, 1, 2])
def test_short_texts_have_no_bleu(long):
    """Two of fifteen references are enough for it, one is not."""
    references = ["two words"] * (15 - long) + ["a sentence of five words"] * long
    metrics = choose_metrics(references)
    assert set(metrics.by_name) == ({"BLEU", "chrF"} if long == 2 else {"exact", "chrF"})
    assert metrics.score(references, references) == pytest.approx(
        dict.fromkeys(metrics.by_name, 100)
    )
    if long < 2:
        assert f"{long} of 15 references have the 4 tokens (13a)" in metrics.without_bleu
        wrong = ["other words", *references[1:]]
        assert metrics.score(wrong, references)["exact"] == pytest.approx(100 * 14 / 15)


def test_the_share_of_unknown_tokens_is_said(tmp_path):
    source, target = tiny.write_parallel_text(tmp_path)
    known = TextTask.create(source, target, 60)
    assert known.notes() == []
    strange = tmp_path / "strange.txt"
    strange.write_text(
        "".join(f"слово {line}\n" for line in target.read_text("utf-8").splitlines()), "utf-8"
    )
    task = TextTask.create(source, strange, **known.same_vocabulary())
    (note,) = task.notes()
    rows = task.subwords.encode(strange.read_text("utf-8").splitlines())
    share = sum(3 in row for row in rows) / sum(len(row) - 1 for row in rows)
    assert share > 0.05
    # Of the training pairs, a part of the file.
    assert abs(float(note.split()[4]) - 100 * share) < 1
    assert note.endswith("% of the target tokens")


def test_unknown_tokens_are_counted_among_those_of_text():
    assert share_unknown([]) == share_unknown([[2, 0, 0]]) == 0
    assert share_unknown([[3, 3, 2, 0], [8, 9, 2]]) == 0.5
    assert describe_unknown({"source": 0.0001, "target": 1.0}) == (
        "unknown to the vocabulary: less than 0.1 % of the source tokens and 100.0 % of the target tokens"
    )
    assert describe_unknown({"source": 0.0}) == ""
