"""The task of own text: what is trained on, watched and judged by, and from which files."""

import collections
import itertools
import json
import random

import numpy as np
import pytest

from heed.seq2seq import TaskError, TextTask
from tests.seq2seq import tiny


def pairs_file(path, numbers):
    path.write_text("".join(f"wort {n} und mehr\tword {n} and more\n" for n in numbers))
    return path


def trained_on(task):
    """Return the targets of all training pairs, in words."""
    return {
        task.subwords.decode([target])[0]
        for batch in (task.training_batch(0, step, 10) for step in range(20))
        for target in batch.target.tolist()
    }


def reloaded(task):
    return TextTask.load(task.to_config(), task.files().__getitem__)


def test_one_file_of_both_sides_is_a_corpus(tmp_path):
    task = TextTask.create(pairs_file(tmp_path / "pairs.tsv", range(100)), vocabulary_size=60)
    held_out = {item.reference for item in task.evaluation_items()}
    assert len(held_out) == 5
    seen = trained_on(reloaded(task))
    assert not held_out & seen
    assert len(seen) == 90
    assert "90 sentence pairs of " in task.description
    assert "10 others held out" in task.description


@pytest.mark.parametrize("part", ["valid", "test"])
def test_only_what_is_not_given_is_held_out(part, tmp_path):
    given = {f"{part}_source": pairs_file(tmp_path / "given.tsv", [200, 3])}
    corpus = pairs_file(tmp_path / "pairs.tsv", [*range(100), 200])
    task = TextTask.create(corpus, vocabulary_size=60, **given)
    assert len(task.evaluation_items()) == (5 if part == "valid" else 2)
    assert sum(len(batch.target) for batch in task.validation_batches()) == (
        2 if part == "valid" else 5
    )
    seen = trained_on(reloaded(task))
    assert len(seen) == 94
    assert not seen & {"word 3 and more", "word 200 and more"}


def test_files_that_do_not_serve(tmp_path):
    corpus = pairs_file(tmp_path / "pairs.tsv", range(30))
    _, target = tiny.write_parallel_text(tmp_path)
    empty = tmp_path / "empty.tsv"
    empty.write_text("\t\n")
    with pytest.raises(TaskError, match=r"empty\.tsv holds no pair"):
        TextTask.create(corpus, test_source=empty)
    with pytest.raises(TaskError, match="no other side: give --valid-source"):
        TextTask.create(corpus, valid_target=target)
    with pytest.raises(TaskError, match="sentences to train on are held"):
        TextTask.create(corpus, test_source=corpus)
    task = TextTask.create(corpus, vocabulary_size=60)
    pairs_file(corpus, range(31))
    with pytest.raises(TaskError, match="changed since the run began"):
        reloaded(task).notes()


def test_tokens_that_are_estimated_let_nothing_long_through(tmp_path, monkeypatch):
    path = pairs_file(tmp_path / "pairs.tsv", range(300))
    with path.open("a") as file:  # as long in letters as the others, but not in tokens
        for n in range(60):
            file.write(f"{''.join(random.Random(n).choices('xqzj', k=16))}\tword {n} and more\n")
    monkeypatch.setattr("heed.seq2seq.tasks.text_task._COUNTED", 10)
    task = TextTask.create(path, vocabulary_size=60, longest=10)
    seen = [task.training_batch(0, step, 16) for step in range(40)]
    assert max(np.count_nonzero(batch.source, axis=1).max() for batch in seen) <= 10
    assert "lengths are estimated from letters" in " ".join(task.notes())


def test_several_corpora_come_as_often_as_their_weights_say_in_batches_by_tokens(tmp_path):
    small, large = tmp_path / "small.tsv", tmp_path / "large.tsv"
    pairs_file(small, range(1000, 1040))
    corpora = [{"source": small, "weight": 3}, {"source": pairs_file(large, range(60))}]
    task = reloaded(TextTask.create(vocabulary_size=60, corpora=corpora))
    batches = [task.training_batch(0, step, 5, tokens=200) for step in range(30)]
    for batch in batches:
        longest = max(np.count_nonzero(side, axis=1).max() for side in batch[:2])
        assert 5 < len(batch.source) <= 200 / longest
    counts = collections.Counter(text for batch in batches for text in task.decode(batch.target))
    rare = [count for text, count in counts.items() if int(text.split()[1]) < 1000]
    often = [count for text, count in counts.items() if int(text.split()[1]) >= 1000]
    assert 2 < np.mean(often) / np.mean(rare) < 4


@pytest.mark.parametrize(
    ("corpora", "problem"),
    [
        ([{"target": "a.tsv"}], "has no other side: give --source too"),
        ([{}], "a corpus needs a source"),
        ([{"source": "a.tsv", "wieght": 2}], "weight, target_language. Received: wieght"),
        ([{"source": "a.tsv", "weight": 0}], r"`weight` must be .*> 0"),
        ([], "own text needs --source"),
    ],
)
def test_corpora_that_do_not_serve(corpora, problem):
    with pytest.raises(TaskError, match=problem):
        TextTask.create(corpora=corpora)


def write_objects(path, pairs):
    rows = [{"source": source, "target": target} for source, target in pairs]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_pairs_with_line_breaks_are_held_out_whole(tmp_path):
    """Whatever a program may take for the end of a line."""
    breaks = ["\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\0", "\t"]
    pairs = [
        (f"- wort {n}{breaks[n % 11]}- ja", f"- word{breaks[n // 9 % 11]}- {n}") for n in range(99)
    ]
    made = TextTask.create(write_objects(tmp_path / "a.jsonl", pairs), vocabulary_size=80)
    task = reloaded(made)
    assert task.to_config() == made.to_config()
    items = task.evaluation_items()
    held_out = {item.text for item in items} | {source for source, *_ in task._validation}
    assert held_out < {source for source, _ in pairs}
    assert len(items) == 4
    assert len(held_out) == 8
    seen = trained_on(task)
    assert len(seen) == 91
    assert not seen & {item.reference for item in items}
    kept = [target.replace("\0", " ") for _, target in pairs]
    assert seen | {item.reference for item in items} < set(kept)


def test_a_run_of_an_earlier_version_reads_its_text_as_it_did(tmp_path):
    """Its held-out pairs lie in files of lines, and no character of its text is changed."""
    lines = [f"w\xa0ort e\u0301 {n}\tcafe\u0301 {n}\n" for n in range(60)]
    (tmp_path / "a.tsv").write_text("".join(lines))
    task = TextTask.create(tmp_path / "a.tsv", vocabulary_size=60, unicode_form="none")
    files = task.files()
    for part in ("validation", "evaluation"):
        rows = [json.loads(line) for line in files.pop(f"{part}.jsonl").splitlines()]
        for side in ("source", "target"):
            files[f"{part}.{side}.txt"] = "".join(f"{row[side]}\n" for row in rows).encode()
    new = {"unicode_form", "spaces", "rare_characters", "unusable_pairs"}
    old = TextTask.load(
        {name: value for name, value in task.to_config().items() if name not in new},
        files.__getitem__,
    )
    assert old.normalizer is None
    for step in range(3):
        np.testing.assert_equal(old.training_batch(0, step, 8), task.training_batch(0, step, 8))
    assert old.evaluation_items() == task.evaluation_items()
    assert old.encode("w\u3000ort")[1:-1] != task.encode("w\u3000ort")[1:-1]
    assert 3 in old.encode("w\u3000ort"), "no letter of this text"
    assert old.same_vocabulary()["unicode_form"] == "none"
    assert old.files() == files


CAFE = "cafe\u0301 \ufb01n"  # decomposed, with a ligature


@pytest.mark.parametrize(
    ("form", "wanted"), [(None, "café \ufb01n"), ("nfkc", "café fin"), ("none", CAFE)]
)
def test_text_has_one_form_in_training_and_after_it(form, wanted, tmp_path):
    lines = [(f"{CAFE} {n}", f"{CAFE} {n}") for n in range(50)]
    path = write_objects(tmp_path / "a.jsonl", lines)
    task = reloaded(TextTask.create(path, vocabulary_size=60, unicode_form=form))
    assert all(text.startswith(f"{wanted} ") for text in trained_on(task))
    assert all(item.reference.startswith(f"{wanted} ") for item in task.evaluation_items())
    assert all(text.startswith(f"{wanted} ") for _, text in task.validation_texts())
    assert task.decode([task.encode_prefix(CAFE)]) == [wanted]
    assert task.source_subwords.decode([task.encode(f"{CAFE}\n7")]) == [f"{wanted} 7"]
    others = ["café \ufb01n", "café fin"]
    same = [task.encode(text) == task.encode(CAFE) for text in others]
    assert same == {None: [True, False], "nfkc": [True, True], "none": [False, False]}[form]


@pytest.mark.parametrize("unit", ["subword", "word", "character"])
def test_white_space_is_a_space_unless_the_text_has_it(unit, tmp_path):
    pairs = [(f"10\xa0km{n % 9}\t{n % 30}", f"zehn\n{n % 9} {n}") for n in range(60)]
    path = write_objects(tmp_path / "a.jsonl", pairs)
    task = reloaded(TextTask.create(path, vocabulary_size=60, unit=unit))

    def read(text):
        return task.source_subwords.decode([task.encode(text)])[0]

    plain = task.encode("10 km3 7")
    for space in ("\n", "\r\n", "\u3000", "\u202f", " \u2028 ", "\u2581", "\0"):
        assert task.encode(f"{space}10{space}km3 {space}7{space}") == plain, ascii(space)
    assert task.encode("10\xa0km3 7") != plain, "one word"
    if unit == "word":
        assert read("10\xa0km3\t7") == "10\xa0km3 7", "what ends words is no part of them"
        assert all("\n" not in text for text in trained_on(task))
    else:
        assert read("10\xa0km3\t7") == "10\xa0km3\t7"
        assert all("\n" in text for text in trained_on(task))
    with pytest.raises(TaskError, match="must have letters"):
        task.encode("\u2581\0")


@pytest.mark.parametrize("unit", ["subword", "word"])
def test_tokens_that_are_nearly_sentences_are_named(unit, tmp_path):
    parts = (
        "我哥哥 邻居 老师 小明 司机",
        "昨天 上周 刚才 星期三",
        "买了蔬菜 忘了雨伞 找到了手机 卖了书 修好了旧自行车 写了信",
    )
    texts = map("".join, itertools.product(*map(str.split, parts)))
    lines = [f"{text}\tword {n}\n" for n, text in enumerate(texts)]
    (tmp_path / "a.tsv").write_text("".join(lines + lines[:20]), encoding="utf-8")
    task = TextTask.create(tmp_path / "a.tsv", unit=unit, vocabulary_size=8_000)
    (note,) = [note for note in reloaded(task).notes() if "nearly sentences" in note]
    assert note.startswith("tokens of the source are nearly sentences (")
    option = "--unit character" if unit == "word" else "a smaller --vocabulary-size"
    assert note.endswith(f"try {option}")
    task = TextTask.create(tmp_path / "a.tsv")
    assert not [note for note in task.notes() if "nearly sentences" in note]


def test_what_a_vocabulary_cannot_hold_is_said(tmp_path):
    letters = [chr(0x4E00 + n) for n in range(450)]
    pairs = [("".join(letters[n : n + 9]), f"word\u2581{n}") for n in range(441)]
    path = write_objects(tmp_path / "a.jsonl", pairs)
    notes = " / ".join(reloaded(TextTask.create(path, vocabulary_size=400)).notes())
    assert "441 pairs are read with a space for U+0000 or U+2581" in notes
    assert "rare characters are spelled in bytes" in notes
    with pytest.raises(TaskError, match=r"at least 454 .* or 324"):
        TextTask.create(path, vocabulary_size=300)


def test_answers_may_be_half_as_long_again_as_what_is_trained_on(tmp_path):
    lines = [f"wort {n}\t{'ein langes wort ' * 3}\n" for n in range(100)]
    (tmp_path / "a.tsv").write_text("".join(lines))
    task = TextTask.create(tmp_path / "a.tsv", unit="word")
    assert task.training_batch(0, 0, 4).target.shape[1] >= 10, "nine words and an end"
    assert task.longest_target == 15
    # What is too long to be trained on says nothing of answers.
    assert TextTask.create(tmp_path / "a.tsv", unit="word", longest=9).longest_target == 8 * 3 // 2
