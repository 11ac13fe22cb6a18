"""A whole model of stock Keras."""

from __future__ import annotations

from benchmarks.cases import Case
from benchmarks.peers import Prepared
from benchmarks.peers._model import prepare_model


def prepare(case: Case) -> Prepared:
    """Four layers of width N*H; backward is a training step."""
    return prepare_model(case)
