"""`heed.ops.dot_product_attention` in Keras' layout."""

from __future__ import annotations

from benchmarks.cases import Case
from benchmarks.peers import Run
from benchmarks.peers._tensorflow import graph, inputs
from heed import ops


def prepare(case: Case) -> Run:
    """As a user calls it: no mask array, `is_causal` where it is causal."""

    def attention(query, key, value):  # type: ignore[no-untyped-def]
        return ops.dot_product_attention(query, key, value, is_causal=case.causal)

    return graph(attention, inputs(case), None, case)
