"""The machine's rate of float32 matrix products, SIZE by SIZE.

The time of such a side is that of the case's matrix products at this rate. So peer's time / heed's time is the share of
the rate that heed reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import Prepared

SIZE = 4096


def matrices() -> list[np.ndarray]:
    """Return the two factors."""
    generator = np.random.default_rng(0)
    return [generator.standard_normal((SIZE, SIZE), dtype=np.float32) for _ in range(2)]


def scale_to_case(run: Callable[[], Any], case: Case) -> Prepared:
    """Return a side with the time of `run`, scaled from its operations to the case's."""
    return Prepared(run, lambda product: [np.asarray(product)], case.operations / (2.0 * SIZE**3))
