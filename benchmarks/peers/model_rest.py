"""A whole model of stock Keras without attention: the part that no attention can make faster."""

from __future__ import annotations

from benchmarks.cases import Case
from benchmarks.peers import Prepared
from benchmarks.peers._model import ProjectionsAlone, prepare_model


def prepare(case: Case) -> Prepared:
    """As `keras_model`, but each head returns the sum of its query, key and value."""
    return prepare_model(case, ProjectionsAlone)
