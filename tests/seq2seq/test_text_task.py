"""The task of own text: what is trained on, watched and judged by, and from which files."""

import collections

import numpy as np
import pytest

from heed.seq2seq import TaskError, TextTask
from tests.seq2seq import tiny


def pairs_file(path, numbers):
    path.write_text("".join(f"wort {n} und mehr\tword {n} and more\n" for n in numbers))
    return path


def trained_on(task):
    """The targets of all training pairs, in words."""
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


def test_held_out_files_are_taken_and_never_trained_on(tmp_path):
    task = TextTask.create(
        pairs_file(tmp_path / "train.tsv", range(100)),
        vocabulary_size=60,
        valid_source=pairs_file(tmp_path / "valid.tsv", [100, 101, 3]),
        test_source=pairs_file(tmp_path / "test.tsv", [7, 102]),
    )
    references = [item.reference for item in task.evaluation_items()]
    assert references == ["word 7 and more", "word 102 and more"]
    assert sum(len(batch.target) for batch in task.validation_batches()) == 3
    seen = trained_on(reloaded(task))
    assert len(seen) == 98
    assert not seen & {"word 3 and more", "word 7 and more"}


@pytest.mark.parametrize("part", ["valid", "test"])
def test_only_what_is_not_given_is_held_out(part, tmp_path):
    given = {f"{part}_source": pairs_file(tmp_path / "given.tsv", [200])}
    corpus = pairs_file(tmp_path / "pairs.tsv", range(100))
    task = TextTask.create(corpus, vocabulary_size=60, **given)
    assert len(task.evaluation_items()) == (5 if part == "valid" else 1)
    assert len(trained_on(reloaded(task))) == 95


def test_files_that_do_not_serve(tmp_path):
    corpus = pairs_file(tmp_path / "pairs.tsv", range(30))
    source, target = tiny.write_parallel_text(tmp_path)
    empty = tmp_path / "empty.tsv"
    empty.write_text("\t\n")
    with pytest.raises(TaskError, match=r"source\.txt has one side"):
        TextTask.create(source)
    with pytest.raises(TaskError, match=r"empty\.tsv holds no pair"):
        TextTask.create(corpus, test_source=empty)
    with pytest.raises(TaskError, match=r"target\.txt has no other side: give --valid-source too"):
        TextTask.create(corpus, valid_target=target)
    with pytest.raises(TaskError, match="all sentences to train on are held out"):
        TextTask.create(corpus, test_source=corpus)
    task = TextTask.create(corpus, vocabulary_size=60)
    pairs_file(corpus, range(31))
    with pytest.raises(TaskError, match=r"pairs\.tsv has changed since the run began"):
        reloaded(task).notes()


def test_the_longest_sentence_is_set_and_what_is_longer_is_counted(tmp_path):
    path = pairs_file(tmp_path / "pairs.tsv", range(100))
    with path.open("a") as file:
        file.writelines(f"{'sehr ' * 40}lang {n}\tlong {n}\n" for n in range(100))
    task = TextTask.create(path, vocabulary_size=60, longest=40)
    notes = reloaded(task).notes()
    assert any("left out of training, because a side has more than 40 tokens" in n for n in notes)
    for step in range(30):
        batch = task.training_batch(0, step, 10)
        assert batch.source.shape[1] <= 40
    with pytest.raises(TaskError, match="at most 40 tokens"):
        task.encode("sehr " * 60)
    with pytest.raises(TaskError, match=r"`longest` must be an integer >= 2"):
        TextTask.create(path, longest=1)


def test_tokens_that_are_estimated_let_nothing_long_through(tmp_path, monkeypatch):
    path = pairs_file(tmp_path / "pairs.tsv", range(300))
    with path.open("a") as file:  # as long in letters as the others, but not in tokens
        file.writelines(f"{'xqzj' * 4}{n}\tword {n} and more\n" for n in range(60))
    monkeypatch.setattr("heed.seq2seq.text_task._COUNTED", 10)
    task = TextTask.create(path, vocabulary_size=60, longest=14)
    seen = [task.training_batch(0, step, 16) for step in range(40)]
    assert max(batch.source.shape[1] for batch in seen) <= 16  # 14, filled up to a multiple of 8
    assert max(np.count_nonzero(batch.source, axis=1).max() for batch in seen) <= 14
    assert "lengths are estimated from letters" in " ".join(task.notes())


def test_a_corpus_without_a_short_sentence_is_refused(tmp_path):
    task = TextTask.create(pairs_file(tmp_path / "a.tsv", range(30)), vocabulary_size=60, longest=3)
    with pytest.raises(TaskError, match="no training pair has at most 3 tokens on both sides"):
        task.training_batch(0, 0, 4)


def test_several_corpora_come_as_often_as_their_weights_say(tmp_path):
    small, large = tmp_path / "small.tsv", tmp_path / "large.tsv"
    pairs_file(small, range(1000, 1040))
    corpora = [{"source": small, "weight": 3}, {"source": pairs_file(large, range(60))}]
    task = reloaded(TextTask.create(vocabulary_size=60, corpora=corpora))
    counts = collections.Counter(
        task.subwords.decode([target])[0]
        for step in range(30)
        for target in task.training_batch(0, step, 5, tokens=200).target.tolist()
    )
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


def test_batches_by_tokens_hold_their_bound(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(
        "".join(f"{'wort ' * (n % 20)}{n}\t{'word ' * (n % 7)}{n}\n" for n in range(500))
    )
    task = TextTask.create(path, vocabulary_size=60)
    sizes = set()
    for step in range(40):
        batch = task.training_batch(0, step, 16, tokens=128)
        sizes.add(len(batch.source))
        real = max(np.count_nonzero(side, axis=1).max() for side in batch[:2])
        assert len(batch.source) == 1 or len(batch.source) * real <= 128
    assert len(sizes) > 3


def test_answers_may_be_half_as_long_again_as_what_is_trained_on(tmp_path):
    lines = [f"wort {n}\t{'ein langes wort ' * 3}\n" for n in range(100)]
    (tmp_path / "a.tsv").write_text("".join(lines))
    task = TextTask.create(tmp_path / "a.tsv", unit="word")
    assert task.training_batch(0, 0, 4).target.shape[1] >= 10, "nine words and an end"
    assert task.longest_target == 15
    # What is too long to be trained on says nothing of answers.
    assert TextTask.create(tmp_path / "a.tsv", unit="word", longest=9).longest_target == 8 * 3 // 2
