"""Attention as tutorials write it, in its best layout: two matrix products and a softmax."""

from __future__ import annotations

import tensorflow as tf

from benchmarks.cases import Case
from benchmarks.peers import Run
from benchmarks.peers._tensorflow import graph, inputs


def prepare(case: Case) -> Run:
    """Inputs are (B, N, T, H) from the start: nothing is transposed while the clock runs."""

    def attention(query, key, value):  # type: ignore[no-untyped-def]
        scores = tf.matmul(query, key, transpose_b=True) * case.head_dim**-0.5
        if case.causal:
            visible = tf.linalg.band_part(tf.ones((case.length, case.length)), -1, 0)
            scores += (1.0 - visible) * -1e9
        return tf.matmul(tf.nn.softmax(scores), value)

    return graph(attention, inputs(case, "BNTH"), None, case)
