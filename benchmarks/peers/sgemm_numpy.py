"""The rate of `numpy.matmul`, which is that of its BLAS library."""

from __future__ import annotations

import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import Prepared
from benchmarks.peers._sgemm import at_its_rate, matrices


def prepare(case: Case) -> Prepared:
    """The product goes into the same memory each time."""
    left, right = matrices()
    product = np.empty_like(left)
    return at_its_rate(lambda: np.matmul(left, right, out=product), case)
