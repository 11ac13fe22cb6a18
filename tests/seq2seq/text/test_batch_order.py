"""Which pairs make up a batch: each its share of an epoch, of like length together, the same after a stop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.seq2seq.text.batch_order import BatchOrder
from heed.seq2seq.text.hashing import permute


def lengths_of(count, longest=17):
    lengths = 1 + np.arange(count) % longest
    return np.stack([lengths, lengths], axis=1)


def batches(order, steps):
    return [order.batch(step) for step in steps]


@given(st.integers(1, 400), st.integers(0, 2**40))
def test_every_place_of_a_scrambled_order_is_another_number(count, key):
    assert sorted(permute(np.arange(count), count, key).tolist()) == list(range(count))


def test_a_scrambled_order_is_one_by_chance():
    found = permute(np.arange(10_000), 10_000, 3)
    assert abs(np.corrcoef(np.arange(10_000), found)[0, 1]) < 0.05
    assert np.count_nonzero(np.diff(found) == 1) < 10
    other = permute(np.arange(10_000), 10_000, 4)
    assert np.count_nonzero(found == other) < 10


@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 3))
def test_an_epoch_takes_each_pair_once(count, size, epoch):
    order = BatchOrder(lengths_of(count), 4, size)
    per_epoch = -(-count // size)
    found = batches(order, range(epoch * per_epoch, (epoch + 1) * per_epoch))
    assert all(len(batch) == size for batch in found)
    taken = np.bincount(np.concatenate(found), minlength=count)
    assert taken.min() >= 1
    assert taken.sum() == per_epoch * size


@given(st.integers(1, 300), st.integers(1, 20), st.integers(1, 200), st.integers(0, 2))
def test_with_a_bound_on_tokens_an_epoch_takes_each_pair_once_and_holds_it(
    count, size, tokens, seed
):
    lengths = lengths_of(count)
    order, found, step = BatchOrder(lengths, seed, size, tokens), [], 0
    while sum(map(len, found)) < count:
        found.append(order.batch(step))
        step += 1
    assert sorted(np.concatenate(found).tolist()) == list(range(count))
    for batch in found:
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= tokens


def test_batches_with_a_bound_on_tokens_are_full():
    lengths = lengths_of(5_000, 60)
    found = batches(BatchOrder(lengths, 0, 32, 1_000), range(100))
    filled = [len(batch) * lengths[batch].max() for batch in found]
    assert np.mean(filled) > 900


@given(st.integers(20, 3_000), st.sampled_from([0, 100]), st.data())
def test_a_batch_does_not_depend_on_those_before_it(count, tokens, data):
    steps = data.draw(st.lists(st.integers(0, 400), min_size=1, max_size=5))
    one = BatchOrder(lengths_of(count), 1, 8, tokens)
    for step in steps:
        assert (BatchOrder(lengths_of(count), 1, 8, tokens).batch(step) == one.batch(step)).all()


def test_sentences_of_like_length_come_together_and_epochs_and_seeds_differ():
    lengths = lengths_of(5_000, 100)
    first, later, other = (
        np.array(batches(BatchOrder(lengths, seed, 50), range(step, step + 100)))
        for seed, step in ((0, 0), (0, 100), (1, 0))
    )
    assert np.mean([np.ptp(lengths[batch]) for batch in first]) < 10
    assert (first != later).mean() > 0.9
    assert (first != other).mean() > 0.9
    # Short sentences come in other steps too, not only other short ones in the same step.
    means = [lengths[one].mean(axis=(1, 2)) for one in (first, other)]
    assert (means[0] != means[1]).any()


@pytest.mark.parametrize("tokens", [0, 64])
def test_weights_say_how_often_the_pairs_of_a_corpus_come(tokens):
    counts, weights = [40, 60, 0, 100], [3, 1, 2, 0.5]
    order = BatchOrder(lengths_of(200), 0, 10, tokens, counts, weights)
    epoch = 120 + 60 + 50
    found, step = np.zeros(0, int), 0
    while len(found) < 2 * epoch:
        found = np.append(found, order.batch(step))
        step += 1
    taken = np.bincount(found[: 2 * epoch], minlength=200)
    assert (taken[:40] == 6).all()
    assert (taken[40:100] == 2).all()
    assert (taken[100:] == 1).all()
