"""The rate of `numpy.matmul`, which is that of its BLAS library."""

from __future__ import annotations

import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import Prepared
from benchmarks.peers._sgemm import matrices, scale_to_case


def prepare(case: Case) -> Prepared:
    """Each product is written into the same memory."""
    left, right = matrices()
    product = np.empty_like(left)
    return scale_to_case(lambda: np.matmul(left, right, out=product), case)
