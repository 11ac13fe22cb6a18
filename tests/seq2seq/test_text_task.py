"""The task of own text: what is trained on, watched and judged by, and from which files."""

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
    with pytest.raises(TaskError, match="every sentence to train on is held out too"):
        TextTask.create(corpus, test_source=corpus)
    task = TextTask.create(corpus, vocabulary_size=60)
    pairs_file(corpus, range(31))
    with pytest.raises(TaskError, match=r"pairs\.tsv has changed since the run began"):
        reloaded(task).notes()
