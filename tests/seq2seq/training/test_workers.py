"""The part of training that concerns several workers, in one process."""

from types import SimpleNamespace

import numpy as np
import tensorflow as tf

from heed.seq2seq.training._workers import Workers


def made(seed):
    variables = [tf.Variable(np.array([seed, 7], np.uint32), trainable=False) for _ in range(3)]
    return SimpleNamespace(values=tuple(variables))


def test_one_process_is_the_chief_and_shares_with_nobody():
    workers = Workers(tf.distribute.get_strategy())
    assert (workers.chief, workers.several, workers.rank, workers.replicas) == (True, False, 0, 1)
    assert workers.share_values({"a": 1.5}) == {"a": 1.5}


def test_each_replica_draws_other_numbers_and_always_the_same():
    workers = Workers(tf.distribute.get_strategy())
    first, second = made(2**32 - 1), made(2**32 - 1)
    workers.vary_seeds([first])
    workers.vary_seeds([second])
    states = [one.numpy().tolist() for one in first.values]
    assert states[0] == [2**32 - 1, 7]
    assert len({tuple(state) for state in states}) == 3
    assert states == [one.numpy().tolist() for one in second.values]
