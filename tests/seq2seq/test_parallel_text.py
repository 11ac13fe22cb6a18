"""A person's own parallel text: what is read, what is refused, how it is split and ordered."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.seq2seq import parallel_text
from heed.seq2seq.corpus import Corpus
from heed.seq2seq.errors import TaskError
from tests.seq2seq.tiny import write_parallel_text


def test_pairs_are_read_in_order(tmp_path):
    pairs, empty = parallel_text.read_pairs(Corpus(*write_parallel_text(tmp_path)))
    assert len(pairs) == 60
    assert empty == 0
    assert all(t == s[::-1] + "é" for s, t in pairs)


def test_pairs_with_an_empty_side_are_left_out(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_text("".join(f"s{i}\n" for i in range(30)) + "\n  \nx\n")
    target.write_text("".join(f"t{i}\n" for i in range(30)) + "x\ny\n\n")
    pairs, empty = parallel_text.read_pairs(Corpus(source, target))
    assert (len(pairs), empty) == (30, 3)


def test_too_little_text_is_refused(tmp_path):
    few = tmp_path / "few"
    few.write_text("same\n" * 100)
    with pytest.raises(TaskError, match=r"at least 20 different"):
        parallel_text.read_pairs(Corpus(few, few))


@given(st.integers(1, 2))
def test_fewer_parts_are_held_out_where_others_are_given(held_out):
    parts = parallel_text.split([(str(i), str(-i)) for i in range(100)], held_out)
    assert [len(part) for part in parts] == [100 - 5 * held_out] + [5] * held_out


@given(st.lists(st.integers(0, 40).map(str), min_size=30, max_size=120))
def test_no_held_out_sentence_is_trained_on(sentences):
    pairs = [(sentence, f"t{i}") for i, sentence in enumerate(sentences)]
    if len(set(sentences)) < 3:
        return
    parts = parallel_text.split(pairs)
    assert sum(map(len, parts)) == len(pairs)
    seen = [{source for source, _ in part} for part in parts]
    assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]
    assert not seen[1] & seen[2]
    assert all(map(len, parts))


def test_the_split_depends_on_sentences_not_on_their_order():
    pairs = [(f"sentence {i}", f"translation {i}") for i in range(200)]
    forward, backward = parallel_text.split(pairs), parallel_text.split(pairs[::-1])
    assert [set(part) for part in forward] == [set(part) for part in backward]
    assert [len(p) for p in forward] == [180, 10, 10]


@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 3))
def test_an_epoch_takes_each_pair_once(count, size, epoch):
    lengths = np.arange(count) % 17
    per_epoch = -(-count // size)
    batches = [
        parallel_text.batch_of_step(lengths, 4, epoch * per_epoch + i, size)
        for i in range(per_epoch)
    ]
    assert all(len(batch) == size for batch in batches)
    taken = np.bincount(np.concatenate(batches), minlength=count)
    assert taken.min() >= 1
    assert taken.sum() == per_epoch * size


def test_sentences_of_like_length_come_together_and_epochs_differ():
    lengths = np.arange(5000) % 100
    spread = np.mean([np.ptp(lengths[parallel_text.batch_of_step(lengths, 0, i, 50)])
                      for i in range(100)])  # fmt: skip
    assert spread < 10
    first = np.concatenate([parallel_text.batch_of_step(lengths, 0, i, 50) for i in range(100)])
    second = np.concatenate(
        [parallel_text.batch_of_step(lengths, 0, 100 + i, 50) for i in range(100)]
    )
    assert (first != second).mean() > 0.9


def test_another_seed_gives_other_batches():
    lengths = np.arange(500) % 20

    def epoch(seed):
        batches = [parallel_text.batch_of_step(lengths, seed, step, 50) for step in range(10)]
        return np.array(batches)

    assert (epoch(1) == epoch(1)).all()
    assert (epoch(1) != epoch(2)).mean() > 0.9
    # Short sentences come in other steps too, not only other short ones in the same step.
    assert (lengths[epoch(1)].mean(axis=1) != lengths[epoch(2)].mean(axis=1)).any()
