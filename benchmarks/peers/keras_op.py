"""`keras.ops.dot_product_attention` on the TensorFlow backend."""

from __future__ import annotations

import dataclasses

import keras

from benchmarks.cases import Case
from benchmarks.peers import Prepared
from benchmarks.peers._tensorflow import make_graph, visible


def prepare(case: Case) -> Prepared:
    """Call it as users do: causal by its own flag, windows and padding by a mask."""
    causal = case.causal and case.window is None
    masked = dataclasses.replace(case, causal=case.window is not None)

    def attention(query, key, value):  # type: ignore[no-untyped-def]
        mask = visible(masked)
        return keras.ops.dot_product_attention(query, key, value, mask=mask, is_causal=causal)

    return make_graph(attention, case)
