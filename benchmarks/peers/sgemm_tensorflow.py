"""The rate of `tf.matmul` in a graph."""

from __future__ import annotations

import tensorflow as tf

from benchmarks.cases import Case
from benchmarks.peers import Prepared
from benchmarks.peers._sgemm import at_its_rate, matrices
from benchmarks.peers._tensorflow import set_threads


def prepare(case: Case) -> Prepared:
    """The product is a new tensor each time."""
    set_threads()
    left, right = map(tf.constant, matrices())
    product = tf.function(tf.matmul, autograph=False)
    return at_its_rate(lambda: product(left, right), case)
