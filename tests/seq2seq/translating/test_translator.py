"""Translating, evaluating and drawing with a finished run, and a run on own text."""

import json
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from heed.seq2seq import NumbersTask, TaskError, TextTask, Translator, evaluate, start_run, train
from heed.seq2seq._demo import run_demo
from heed.seq2seq.evaluating.evaluation import Answer, Evaluation
from heed.seq2seq.runs.run_folder import RunFolder
from heed.seq2seq.tasks import number_words
from heed.seq2seq.tasks.task import Item
from heed.seq2seq.translating import translator as translator_module
from heed.seq2seq.translating.attention import read_attention
from heed.seq2seq.translating.translator import translate_stream
from tests.seq2seq import tiny


@pytest.mark.parametrize("batch_size", [1, 2, 500])
def test_each_row_gets_its_own_answer(translator, monkeypatch, batch_size):
    """Of a model that repeats what it reads: the tiny one answers all rows alike."""
    monkeypatch.setattr(translator_module, "generate", lambda _, source, **options: source)
    rows = [translator.task.encode(line) for line in ("1234", "7", "999,999", "42", "0", "31")]
    for answer, row in zip(translator.decode(rows, batch_size), rows, strict=True):
        assert answer[: len(row)] == row
        assert not any(answer[len(row) :])


def best(stream):
    """Return the text of the first translation of each line, or nothing."""
    return (found[0].text if found else "" for found in stream)


def test_lines_are_translated_as_they_come(translator):
    asked = []

    def lines():
        for line in ("1\n", "2\r\n", "3"):
            asked.append(line)
            yield line

    stream = best(translate_stream(translator, lines(), pytest.fail, batch_size=1))
    first = next(stream)
    assert len(asked) == 1, "an answer waits for no later line"
    assert [first, *stream] == translator(["1", "2", "3"])
    assert list(translate_stream(translator, [], pytest.fail)) == []


@pytest.mark.parametrize("size", [1, 2, 3, 64])
def test_output_keeps_in_step_with_input(translator, size):
    """An empty line for an empty line, and for a bad one, which is reported by its number."""
    reported = []
    lines = ["1\n", "\n", "x\n", " \r\n", "4\n", "1000000\n", "\udcff\n", "2"]
    found = list(best(translate_stream(translator, lines, reported.append, batch_size=size)))
    one, four, two = translator(["1", "4", "2"])
    assert found == [one, "", "", "", four, "", "", two]
    assert len(reported) == 3
    assert reported[0].startswith("line 3: a number must be digits")
    assert reported[1].startswith("line 6: a number must be from 0 to 999,999")
    assert reported[2].startswith("line 7: a number must be digits")


def test_perplexity_is_that_of_the_whole_model(translator):
    """Of each token, the end included; padding, batches and their order change nothing."""
    task = translator.task
    rows = [task.encode(str(n)) for n in (7, 123_456, 31)]
    targets = task.subwords.encode(["seven", "one hundred", "x"])
    logs = []
    for row, target in zip(rows, targets, strict=True):
        batch = {"source": np.array([row]), "target": np.array([[1, *target[:-1]]])}
        logits = np.asarray(translator.model(batch))[0].astype("float64")
        steps = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        logs += [steps[t, token] for t, token in enumerate(target)]
    found = translator.perplexity(rows, targets)
    assert found == pytest.approx(np.exp(-np.mean(logs)), rel=1e-5)
    turned = translator.perplexity(rows[::-1] * 30, targets[::-1] * 30)
    assert found == pytest.approx(turned, rel=1e-5)
    assert translator.perplexity([], []) == 1


def test_sentences_that_are_too_long_are_not_cut_silently(tmp_path, capsys, eager):
    """More than 128 tokens: refused in translation, counted in training, validation and evaluation."""
    source, target = tiny.write_parallel_text(tmp_path)
    lines = source.read_text().splitlines()
    run = start_run(tmp_path / "plain", TextTask.create(source, target, 60), **tiny.TINY)
    assert run.task().notes() == []
    validation = [source for source, *_ in run.task()._validation]
    evaluation = [source for source, *_ in run.task()._evaluation]
    training = [x for x in lines if x not in validation and x not in evaluation]
    # Where a sentence goes depends on its source: the targets become long.
    translations = target.read_text().splitlines()
    for long in (training[0], training[1], validation[0], evaluation[0]):
        translations[lines.index(long)] = "aa " * 200
    target.write_text("".join(f"{x}\n" for x in [*translations, ""]))
    source.write_text("".join(f"{x}\n" for x in [*lines, ""]))
    options = {**tiny.TINY, "steps": 1, "patience": 0}
    run = start_run(tmp_path / "run", TextTask.create(source, target, 60), **options)
    notes = [
        "1 pair is left out, because a side is empty",
        "2 pairs are left out of training, because a side has more than 128 tokens",
        "1 pair is cut to 128 tokens a side for validation",
    ]
    assert run.task().notes() == notes
    train(run, progress=True)
    said = capsys.readouterr().err
    assert all(note in said for note in notes)
    assert all(note in (run.path / "train.log").read_text() for note in notes)
    train(run, progress=True)
    assert capsys.readouterr().err == "", "said once"

    translator = Translator(run)
    with pytest.raises(TaskError, match=r"at most 128 tokens.*Received: \d+"):
        translator(["aa bb " * 100])
    with pytest.raises(TaskError, match="at most 128 tokens"):
        read_attention(translator, "aa bb " * 100)
    with pytest.raises(TaskError, match="must be UTF-8 text"):
        translator(["aa \udcff"])
    rows = [{"source": "aa bb " * 100, "target": "a"}, {"source": "aa", "target": "aa"}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (run.path / "evaluation.jsonl").write_text(text)
    items = TextTask(run.config["task"], lambda name: (run.path / name).read_bytes())
    translator.task = items
    assert [item.cut for item in items.evaluation_items()] == [True, False]
    assert len(items.evaluation_items()[0].ids) == 128
    result = evaluate(translator)
    assert result.cut == result.to_dict()["cut"] == 1
    assert "1 of the sources are too long and were cut" in result.report()


def test_evaluation_counts_right_answers(finished_run, monkeypatch):
    monkeypatch.setattr(number_words, "evaluation_numbers", lambda: np.array([5, 60, 700]))
    translator = Translator(finished_run)
    monkeypatch.setattr(translator.task, "extra_evaluations", dict)
    right = {("5", "en"), ("60", "en"), ("700", "de")}
    items = translator.task.evaluation_items()
    by_ids = {tuple(item.ids): item for item in items}
    encode = translator.task.subwords.encode

    def decode(rows, batch_size=500):
        found = [by_ids[tuple(row)] for row in rows]
        return encode([i.reference if (i.text, i.group) in right else "x" for i in found])

    monkeypatch.setattr(translator, "decode", decode)
    result = evaluate(translator)
    assert (result.right, len(result.answers), result.exact) == (3, 6, 0.5)
    assert {name: group.right for name, group in result.groups().items()} == {"en": 2, "de": 1}
    assert result.bleu is None
    assert len(result.wrong) == 3
    figures = result.to_dict()
    assert figures["groups"] == {"en": 2 / 3, "de": 1 / 3}
    assert result.report()[0].startswith("3 of 6 held-out answers are right to the letter: 50.00 %")
    assert len(result.report()) == 3


def test_the_numbers_below_a_thousand_are_counted_beside(finished_run, monkeypatch):
    """Small numbers, which people type first, are not held out and have their own line."""
    monkeypatch.setattr(number_words, "evaluation_numbers", lambda: np.array([5000, 60_000]))
    translator = Translator(finished_run)
    task, wrong = translator.task, {(0, "en"), (1, "de"), (55, "de")}

    def decode(rows, batch_size=500):
        asked = [task.source_labels(row) for row in rows]
        pairs = [(int("".join(reversed(digits))), language) for language, *digits in asked]
        return task.subwords.encode(
            ["x" if pair in wrong else number_words.spell(*pair) for pair in pairs]
        )

    monkeypatch.setattr(translator, "decode", decode)
    result = evaluate(translator)
    assert (result.right, len(result.answers)) == (4, 4), "the others are not mixed in"
    (small,) = result.extra.values()
    assert (small.right, len(small.answers)) == (1997, 2000)
    assert [(a.source, a.group) for a in small.wrong] == [("0", "en"), ("1", "de"), ("55", "de")]
    assert result.report()[3:] == [
        "1,997 of 2,000 numbers below 1,000 are right: 99.85 % (training draws on these)",
        "  en  999 of 1,000: 99.90 %",
        "  de  998 of 1,000: 99.80 %",
    ]
    figures = result.to_dict()["extra"]["numbers below 1,000"]
    assert (figures["right"], figures["pairs"], len(figures["wrong"])) == (1997, 2000, 3)


def test_bleu_and_chrf_take_translations_as_hypotheses():
    """An answer that stops half-way: all of it is right, but it is too short."""
    sacrebleu = pytest.importorskip("sacrebleu")
    said, reference = "one two three four five", "one two three four five six seven eight nine ten"
    task = SimpleNamespace(
        has_corpus_scores=True,
        evaluation_items=lambda: [Item([5], "x", reference, "text")],
        extra_evaluations=dict,
        decode=lambda rows: [said for _ in rows],
        subwords=SimpleNamespace(encode=lambda texts: [[5, 2] for _ in texts]),
    )
    asked = []
    translator = SimpleNamespace(
        task=task,
        decode=lambda rows: rows,
        perplexity=lambda *given: asked.append(given) or 3.5,
    )
    result = evaluate(translator)
    assert (result.perplexity, asked) == (3.5, [([[5]], [[5, 2]])])
    assert "perplexity 3.50 per token of the references" in result.report()
    assert result.bleu == pytest.approx(100 * np.exp(1 - 10 / 5)), "the brevity penalty alone"
    chrf = sacrebleu.sentence_chrf(hypothesis=said, references=[reference]).score
    assert result.chrf == pytest.approx(chrf)
    assert chrf != pytest.approx(sacrebleu.sentence_chrf(reference, [said]).score, abs=5)


def test_a_run_without_weights(tmp_path):
    run = tiny.start(tmp_path / "run")
    with pytest.raises(TaskError, match=r"no weights yet: .*heed train --resume"):
        Translator(run)


def test_an_unfinished_run_translates_with_its_checkpoint(tmp_path, finished_run, translator):
    copy = RunFolder.open(shutil.copytree(finished_run.path, tmp_path / "copy"))
    copy.weights.unlink()
    unfinished = Translator(copy)
    assert unfinished.step == 12
    assert unfinished(["123"]) == translator(["123"])


@pytest.mark.slow
def test_own_text_from_files_to_scores(tmp_path):
    text = TextTask.create(*tiny.write_parallel_text(tmp_path), 60)
    run = start_run(tmp_path / "run", text, **{**tiny.TINY, "steps": 6})
    train(run, progress=False)
    translator = Translator(run)
    assert len(translator(["aa bb", "cc"])) == 2
    with pytest.raises(TaskError, match=r"cannot be chosen .*Received: en"):
        translator(["aa"], "en")
    with pytest.raises(TaskError, match="must not be empty"):
        translator(["  "])
    result = evaluate(translator)
    assert len(result.answers) == 3
    assert result.bleu is not None
    assert result.chrf is not None
    assert any(line.startswith("BLEU") for line in result.report())
    references = Evaluation([Answer(a.source, a.reference, a.reference, "text")
                             for a in result.answers], 0.0)  # fmt: skip
    assert references.exact == 1.0
    found = read_attention(translator, "aa bb")
    assert found.source[-1] == "end"
    assert found.capture.weights["cross 1"].shape[2:] == (len(found.target), len(found.source))


def test_a_changed_text_is_noticed(tmp_path):
    source, target = tiny.write_parallel_text(tmp_path)
    run = start_run(tmp_path / "run", TextTask.create(source, target, 60), **tiny.TINY)
    source.write_text(source.read_text().replace("aa", "bb", 1))
    with pytest.raises(TaskError, match=r"source\.txt has changed"):
        train(run, progress=False)
    source.unlink()
    with pytest.raises(TaskError, match=r"cannot read .*source\.txt"):
        train(run, progress=False)


def test_every_attention_of_a_translation(translator):
    found = read_attention(translator, "12 34", "de")
    assert found.source == ["de", "1", "2", "3", "4"]
    assert found.translation == translator(["1234"], "de")[0]
    T = len(found.target)
    kinds, weights = found.capture.kinds, found.capture.weights
    assert kinds == {"encoder 1": "self", "decoder 1": "causal", "cross 1": "cross"}
    assert found.tokens["decoder 1"] == (found.target, ["start", *found.target[:-1]])
    assert weights["decoder 1"].shape == (1, 2, T, T)
    assert (np.triu(weights["decoder 1"][0, 0], 1) == 0).all()
    # The encoder's rows and columns are moved alike: the model reads the units first.
    source = translator.task.encode("1234", "de")
    written = [i for i in translator.decode([source])[0] if i][:T]
    inputs = {"source": np.array([source]), "target": np.array([[1, *written[:-1]]])}
    _, scores = translator.model(inputs, return_attention_scores=True)
    order = [0, 4, 3, 2, 1]
    direct = np.asarray(scores["encoder"][0])[:, :, order][..., order]
    np.testing.assert_allclose(weights["encoder 1"], direct, atol=1e-6)
    np.testing.assert_allclose(
        weights["cross 1"], np.asarray(scores["cross"][0])[..., order], atol=1e-5
    )
    np.testing.assert_allclose(weights["cross 1"].sum(-1), 1.0, atol=1e-5)


def test_ids_that_are_no_text_have_labels_too(translator, monkeypatch):
    ids = [5, 0, 1, 3, 6, 2, 0, 0]
    monkeypatch.setattr(translator, "decode", lambda rows: [ids])
    found = read_attention(translator, "7")
    assert len(found.target) == 6
    assert (found.target[1], found.target[2], found.target[5]) == ("pad", "start", "end")
    assert found.capture.weights["cross 1"].shape[2:] == (6, 2)


def test_the_name_of_a_picture_says_what_it_is(translator, tmp_path):
    found = read_attention(translator, "1")
    starts = {"a.PDF": b"%PDF", "a.svg": b"<?xml"}  # of .png: below
    for name, start in starts.items():
        assert found.draw(tmp_path / name).read_bytes().startswith(start)
    for bad in ("a", "a.jpg", "a.png.txt"):
        with pytest.raises(TaskError, match=r"a \.png, \.svg or \.pdf"):
            found.draw(tmp_path / bad)
    assert {p.name for p in tmp_path.iterdir()} == set(starts)


def test_a_picture_and_a_page_of_a_translation(translator, tmp_path, monkeypatch):
    found = read_attention(translator, "1234", "de")
    path = found.draw(tmp_path / "a.png")
    assert path == tmp_path / "a.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    page = found.write_page(tmp_path / "a.html").read_text()
    assert f"<title>1234 → {found.translation}</title>" in page
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(TaskError, match="pictures need matplotlib: pip install"):
        found.draw(path)


def test_the_demo_tells_all(tmp_path, monkeypatch, eager):
    numbers = np.array([382764, 5, 60, 700, 8000])
    monkeypatch.setattr(number_words, "evaluation_numbers", lambda: numbers)
    monkeypatch.setattr(NumbersTask, "extra_evaluations", dict)
    lines = []
    options = {k: v for k, v in tiny.TINY.items() if k != "dropout"} | {"steps": 2}
    made = run_demo(tmp_path / "run", print_line=lines.append, progress=False, **options)
    text = "\n".join(lines)
    assert "of 5 held-out answers are right" in text
    assert "382,764" in text
    assert str(made.picture) in text
    assert made.picture.exists()
    assert "<title>382,764 → " in made.page.read_text(encoding="utf-8")
    assert (made.run.path / "evaluation.json").exists()
    with pytest.raises(TaskError, match="exists already"):
        run_demo(tmp_path / "run", print_line=lines.append, progress=False, **options)
