"""`heed.ops.additive_attention`."""

from __future__ import annotations

from benchmarks.cases import Case
from benchmarks.peers import Prepared
from benchmarks.peers._tensorflow import make_graph
from heed import ops


def prepare(case: Case) -> Prepared:
    """Projected query, key and value, and the score vector."""
    return make_graph(ops.additive_attention, case)
