"""The sides of a comparison.

A peer is one module in this folder with a function `prepare(case)` that makes random inputs and
returns a function without arguments that computes the attention once and returns when it is done.
The module is imported only in the peer's own process. To add a side, write its module and list it
in `PEERS`; a module that cannot be imported is reported and left out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.cases import Case

Run = Callable[[], object]


@dataclass(frozen=True)
class Peer:
    """One side of a comparison.

    Args:
        title: how it is called in the tables.
        module: where its `prepare` is.
        group: sides of one group are compared with each other.
        is_heed: whether others can be divided by it; they are by the first such side of a table.
        environment: variables of its process.
    """

    title: str
    module: str
    group: str
    is_heed: bool = False
    environment: dict[str, str] = field(default_factory=dict)


PEERS: dict[str, Peer] = {
    "heed": Peer("heed", "benchmarks.peers.heed_op", "op", is_heed=True),
    "heed-portable": Peer("heed portable", "benchmarks.peers.heed_portable", "op", is_heed=True),
    "naive": Peer("naive TensorFlow", "benchmarks.peers.naive", "op"),
    "keras-op": Peer("keras.ops", "benchmarks.peers.keras_op", "op"),
    "heed-layer": Peer("heed layer", "benchmarks.peers.heed_layer", "layer", is_heed=True),
    "keras-layer": Peer("keras layer", "benchmarks.peers.keras_layer", "layer"),
}


def prepare(module: str, case: Case) -> Run:
    """Imports a side and prepares a case."""
    run: Run = importlib.import_module(module).prepare(case)
    return run
