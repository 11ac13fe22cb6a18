"""A whole model of stock Keras, accelerated."""

from __future__ import annotations

import heed
from benchmarks.cases import Case
from benchmarks.peers import Prepared
from benchmarks.peers._model import prepared


def prepare(case: Case) -> Prepared:
    """As `keras_model`, for the rest of the process on heed's attention."""
    heed.accelerate()
    return prepared(case)
