"""A whole model of stock Keras without its attention: what no attention can make quicker."""

from __future__ import annotations

from benchmarks.cases import Case
from benchmarks.peers import Prepared
from benchmarks.peers._model import ValuesAlone, prepared


def prepare(case: Case) -> Prepared:
    """As `keras_model`, with projections, but the heads give their values as they are."""
    return prepared(case, ValuesAlone)
