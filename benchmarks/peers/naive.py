"""Attention as in tutorials, in its best layout: two matrix products and a softmax."""

from __future__ import annotations

import tensorflow as tf

from benchmarks.cases import Case
from benchmarks.peers import Prepared
from benchmarks.peers._tensorflow import make_graph, visible


def prepare(case: Case) -> Prepared:
    """Return inputs are (B, N, T, H) from the start, so that no transpose is timed."""
    group = case.heads // case.key_head_count

    def attention(query, key, value):  # type: ignore[no-untyped-def]
        if group > 1:
            key, value = (tf.repeat(x, group, axis=1) for x in (key, value))
        scores = tf.matmul(query, key, transpose_b=True) * case.head_dim**-0.5
        seen = visible(case)
        if seen is not None:
            scores += (1.0 - tf.cast(seen, scores.dtype)) * -1e9
        return tf.matmul(tf.nn.softmax(scores), value)

    return make_graph(attention, case, "BNTH")
