"""The machine's own rate: a float32 matrix product of SIZE by SIZE.

As a side of a case its time is what the case's matrix products would take at that rate. So peer's
time / heed's time is the share of the rate that heed reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import Prepared

SIZE = 4096


def matrices() -> list[np.ndarray]:
    """The two factors."""
    generator = np.random.default_rng(0)
    return [generator.standard_normal((SIZE, SIZE), dtype=np.float32) for _ in range(2)]


def at_its_rate(run: Callable[[], Any], case: Case) -> Prepared:
    """A side whose time is `run`'s, per operation."""
    return Prepared(run, lambda product: [np.asarray(product)], case.operations / (2.0 * SIZE**3))
