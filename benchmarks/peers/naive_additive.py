"""Additive attention as in tutorials: the tanh of each pair of query and key."""

from __future__ import annotations

import tensorflow as tf

from benchmarks.cases import Case
from benchmarks.peers import Prepared
from benchmarks.peers._tensorflow import make_graph


def prepare(case: Case) -> Prepared:
    """Build (B, T, S, U)."""

    def attention(query, key, value, score_vector):  # type: ignore[no-untyped-def]
        hidden = tf.tanh(query[:, :, None] + key[:, None])
        scores = tf.linalg.matvec(hidden, score_vector)
        return tf.matmul(tf.nn.softmax(scores), value)

    return make_graph(attention, case)
