"""A whole model of stock Keras, accelerated."""

from __future__ import annotations

import heed
from benchmarks.cases import Case
from benchmarks.peers import Prepared
from benchmarks.peers._model import prepare_model


def prepare(case: Case) -> Prepared:
    """As `keras_model`, with heed's attention for the rest of the process."""
    heed.accelerate()
    return prepare_model(case)
