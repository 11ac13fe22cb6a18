"""`heed.ops.dot_product_attention` in plain TensorFlow, also where native kernels are installed."""

from __future__ import annotations

import heed
from benchmarks.cases import Case
from benchmarks.peers import Prepared, heed_op


def prepare(case: Case) -> Prepared:
    """As `heed_op`, for the rest of the process without the native kernels."""
    heed.set_implementation("portable")
    return heed_op.prepare(case)
