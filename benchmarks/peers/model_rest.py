"""A whole model of stock Keras without its attention: what no attention can make quicker."""

from __future__ import annotations

from benchmarks.cases import Case
from benchmarks.peers import Prepared
from benchmarks.peers._model import ProjectionsAlone, prepared


def prepare(case: Case) -> Prepared:
    """As `keras_model`, but each head gives the sum of its query, key and value."""
    return prepared(case, ProjectionsAlone)
