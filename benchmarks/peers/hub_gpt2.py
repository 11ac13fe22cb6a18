"""KerasHub's GPT-2, stock."""

from __future__ import annotations

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _gpt2


def prepare(case: Case) -> Prepared:
    """See `_gpt2.prepare`."""
    return _gpt2.prepare(case, accelerated=False)
