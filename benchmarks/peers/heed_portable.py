"""`heed.ops.dot_product_attention` in plain TensorFlow, without the native kernels."""

from __future__ import annotations

import heed
from benchmarks.cases import Case
from benchmarks.peers import Prepared, heed_op


def prepare(case: Case) -> Prepared:
    """As `heed_op`, without the native kernels for the rest of the process."""
    heed.set_implementation("portable")
    return heed_op.prepare(case)
