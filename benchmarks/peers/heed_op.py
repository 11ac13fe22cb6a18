"""`heed.ops.dot_product_attention` in the layout of the other sides."""

from __future__ import annotations

from benchmarks.cases import Case
from benchmarks.peers import Prepared
from benchmarks.peers._tensorflow import make_graph
from heed import Mask, ops


def prepare(case: Case) -> Prepared:
    """Call it as users do, with rules instead of a mask array. Inputs are (B, N, T, H), as for PyTorch."""

    def attention(query, key, value):  # type: ignore[no-untyped-def]
        mask = None
        if case.window is not None:
            mask = Mask.window(case.window - 1, 0)
        if case.padded:
            lengths = Mask.lengths(case.key_lengths)
            mask = lengths if mask is None else mask & lengths
        causal = case.causal and case.window is None
        return ops.dot_product_attention(
            query, key, value, mask=mask, is_causal=causal, layout="BNTH"
        )

    return make_graph(attention, case, "BNTH")
