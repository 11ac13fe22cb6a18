"""`keras.ops.dot_product_attention` on the TensorFlow backend."""

from __future__ import annotations

import keras

from benchmarks.cases import Case
from benchmarks.peers import Run
from benchmarks.peers._tensorflow import graph, inputs


def prepare(case: Case) -> Run:
    """As a user calls it."""

    def attention(query, key, value):  # type: ignore[no-untyped-def]
        return keras.ops.dot_product_attention(query, key, value, is_causal=case.causal)

    return graph(attention, inputs(case), None, case)
