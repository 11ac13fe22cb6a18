"""The rate of `tf.matmul` in a graph."""

from __future__ import annotations

import tensorflow as tf

from benchmarks.cases import Case
from benchmarks.peers import Prepared
from benchmarks.peers._sgemm import matrices, scale_to_case
from benchmarks.peers._tensorflow import set_threads


def prepare(case: Case) -> Prepared:
    """Each product is a new tensor."""
    set_threads()
    left, right = map(tf.constant, matrices())
    product = tf.function(tf.matmul, autograph=False)
    return scale_to_case(lambda: product(left, right), case)
