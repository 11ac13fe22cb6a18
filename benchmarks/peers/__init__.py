"""The sides of a comparison.

A peer is one module in this folder with a function `prepare(case)` that makes random inputs and
returns a `Prepared`. The module is imported only in the peer's own process. To add a side, write
its module and list it in `PEERS`; a module that cannot be imported is reported and left out.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import importlib.util
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import OPTION_SIDES, OPTIONS, Case

OPTION = "HEED_BENCHMARK_OPTION"
COMPILED = "HEED_BENCHMARK_XLA"
TOGETHER = "HEED_BENCHMARK_TOGETHER"
THREADS = "HEED_BENCHMARK_THREADS"


@dataclass(frozen=True)
class Prepared:
    """A case, ready to be computed.

    Args:
        run: computes it once and returns when the values are there.
        arrays: turns what `run` returned into float32 arrays, to compare them with heed's: the
            output in heed's layout, then the gradients of the inputs and of any weights.
        portion: what the time of `run` is multiplied with, for a side whose work is not the case.
        base: what is run too, and its time taken off that of `run`.
    """

    run: Callable[[], Any]
    arrays: Callable[[Any], list[np.ndarray]]
    portion: float = 1.0
    base: Callable[[], Any] | None = None

    @classmethod
    def chain(
        cls,
        case: Case,
        make: Callable[[int], Callable[[], Any]],
        arrays: Callable[[Any], list[np.ndarray]],
    ) -> Prepared:
        """As many in a row as the case says, and the time of one more.

        Args:
            case: what to compute.
            make: gives what computes so many attentions in a row.
            arrays: as above.
        """
        if case.chain == 1:
            return cls(make(1), arrays)
        return cls(make(case.chain), arrays, 1 / (case.chain - 1), make(1))


def in_a_row(attention: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Attention `count` times, each with the output of the one before as its query."""

    def run(query: Any, *others: Any) -> Any:
        for _ in range(count):
            query = attention(query, *others)
        return query

    return run


def as_it_is(case: Case) -> Case:
    """A peer that computes every case itself."""
    return case


def without_window(case: Case) -> Case:
    """A peer without windows has to compute all of a causal attention instead."""
    return dataclasses.replace(case, window=None)


@dataclass(frozen=True)
class Peer:
    """One side of a comparison.

    Args:
        title: how it is called in the tables.
        module: where its `prepare` is.
        kind: which cases it computes; sides of one kind are compared with each other.
        is_heed: whether others are divided by it and compared with it: the first of a run is.
        is_limit: a speed of the machine, a model without its attention or with weights of its own: there is no result
            to compare, and its memory is not measured.
        is_variant: heed once more, in another way: it is compared with heed alone, and never chosen by name.
        builds_scores: whether it builds the whole tensor of scores, and so needs memory for it.
        computes: what it computes in place of a case.
        environment: variables of its process.
        python: the interpreter of its process; None for the one that runs the benchmarks.
    """

    title: str
    module: str
    kind: str = "dot-product"
    is_heed: bool = False
    is_limit: bool = False
    is_variant: bool = False
    builds_scores: bool = False
    computes: Callable[[Case], Case] = as_it_is
    environment: dict[str, str] = field(default_factory=dict)
    python: str | None = None


def one_plain_call(case: Case) -> Case:
    """A peer that has no graph, neither for several in a row nor for gradients, and is plain or causal."""
    return dataclasses.replace(case, chain=1, backward=False, padded=False, window=None)


def _limit(library: str, title: str) -> Peer:
    # OpenBLAS' idle threads would spin for a tenth of a second.
    environment = {"OPENBLAS_THREAD_TIMEOUT": "10"}
    module = f"benchmarks.peers.sgemm_{library}"
    return Peer(f"sgemm rate of {title}", module, is_limit=True, environment=environment)


_HERE = "benchmarks.peers."
PEERS: dict[str, Peer] = {
    "heed": Peer("heed", _HERE + "heed_op", is_heed=True),
    "heed-portable": Peer("heed portable", _HERE + "heed_portable", is_heed=True),
    "torch": Peer("PyTorch SDPA", _HERE + "torch_op", computes=without_window),
    "jax": Peer("JAX", _HERE + "jax_op", builds_scores=True),
    "naive": Peer("naive TensorFlow", _HERE + "naive", builds_scores=True),
    "keras-op": Peer("keras.ops", _HERE + "keras_op", builds_scores=True),
    "sgemm-torch": _limit("torch", "PyTorch"),
    "sgemm-tensorflow": _limit("tensorflow", "TensorFlow"),
    "sgemm-numpy": _limit("numpy", "NumPy"),
    "heed-eager": Peer("heed, no graph", _HERE + "heed_eager", computes=one_plain_call),
    "matmul": Peer("tf.matmul node", _HERE + "matmul_node", is_limit=True),
    "heed-additive": Peer("heed", _HERE + "heed_additive", "additive", is_heed=True),
    "additive-naive": Peer(
        "naive TensorFlow", _HERE + "naive_additive", "additive", builds_scores=True
    ),
    "additive-keras": Peer(
        "Keras AdditiveAttention", _HERE + "keras_additive", "additive", builds_scores=True
    ),
    "heed-layer": Peer("heed layer", _HERE + "heed_layer", "layer", is_heed=True),
    "keras-layer": Peer("keras layer", _HERE + "keras_layer", "layer", builds_scores=True),
    "heed-model": Peer("accelerated", _HERE + "heed_model", "model", is_heed=True),
    "keras-model": Peer("stock Keras", _HERE + "keras_model", "model", builds_scores=True),
    "heed-generate": Peer("heed", _HERE + "heed_generate", "generate", is_heed=True),
    # Threads that decode a share of the texts each, or that share all work on all texts.
    **{
        name: Peer(
            f"CTranslate2, {split}",
            _HERE + "ctranslate2_generate",
            "generate",
            environment={TOGETHER: together},
        )
        for name, split, together in (
            ("ctranslate2", "texts split", "0"),
            ("ctranslate2-together", "threads together", "1"),
        )
    },
    # Another model with weights of its own: what it writes is not what heed does.
    "hub-generate": Peer("KerasHub BART", _HERE + "hub_generate", "generate", is_limit=True),
    "hub-generate-xla": Peer(
        "KerasHub BART with XLA",
        _HERE + "hub_generate",
        "generate",
        is_limit=True,
        environment={COMPILED: "1"},
    ),
    "heed-gpt2": Peer("accelerated GPT-2", _HERE + "heed_gpt2", "continue", is_heed=True),
    "hub-gpt2": Peer("KerasHub GPT-2", _HERE + "hub_gpt2", "continue"),
    "heed-training": Peer("heed", _HERE + "heed_training", "training", is_heed=True),
    # Models with weights of their own.
    "keras-training": Peer(
        "stock Keras", _HERE + "keras_training", "training", is_limit=True, builds_scores=True
    ),
    "keras-training-xla": Peer(
        "stock Keras with XLA",
        _HERE + "keras_training",
        "training",
        is_limit=True,
        builds_scores=True,
        environment={COMPILED: "1"},
    ),
    "hub-training": Peer("KerasHub", _HERE + "hub_training", "training", is_limit=True),
    "hub-training-xla": Peer(
        "KerasHub with XLA",
        _HERE + "hub_training",
        "training",
        is_limit=True,
        environment={COMPILED: "1"},
    ),
    "torch-training": Peer(
        "PyTorch nn.Transformer", _HERE + "torch_training", "training", is_limit=True
    ),
    "model-rest": Peer("without attention", _HERE + "model_rest", "model", is_limit=True),
}


# The same attention with one option more; there is nothing to compare its result with.
PEERS |= {
    name: Peer(f"with {option}", _HERE + "heed_option", is_limit=True, environment={OPTION: option})
    for name, option in zip(OPTION_SIDES, OPTIONS, strict=True)
}


BEFORE = "-before"
# Each side of heed once more, to be run by an interpreter that has another heed.
PEERS |= {
    name + BEFORE: dataclasses.replace(
        peer, title=f"{peer.title} before", is_heed=False, is_variant=True
    )
    for name, peer in PEERS.items()
    if peer.is_heed
}


def instruction_sets() -> list[str]:
    """Those of the native library from the one in use on, best first. No framework is imported."""
    package = importlib.util.find_spec("heed")
    folders = (package and package.submodule_search_locations) or []
    for file in (Path(folder) / "_lib" / "libheed_core.so" for folder in folders):
        if file.exists():
            library = ctypes.CDLL(str(file))
            if not hasattr(library, "heed_instruction_set_name"):
                return []  # an older heed, which this process runs for `--before`
            ask, in_use = library.heed_instruction_set_name, library.heed_instruction_set
            ask.restype = in_use.restype = ctypes.c_char_p
            names = [
                name.decode() for name in itertools.takewhile(bool, map(ask, itertools.count()))
            ]
            return names[names.index(in_use().decode()) :]
    return []


WITH = "-with-"
# And each side of heed that has kernels, with those of each instruction set.
PEERS |= {
    name + WITH + instructions: dataclasses.replace(
        PEERS[name],
        title=f"{PEERS[name].title} on {instructions}",
        is_heed=False,
        is_variant=True,
        environment={"HEED_INSTRUCTION_SET": instructions},
    )
    for name in ("heed", "heed-additive", "heed-layer", "heed-model")
    for instructions in instruction_sets()
}


def prepare(module: str, case: Case) -> Prepared:
    """Imports a side and prepares a case."""
    prepared: Prepared = importlib.import_module(module).prepare(case)
    return prepared


def threads() -> int | None:
    """How many threads a side may compute with; None leaves it to its library."""
    value = os.environ.get(THREADS)
    return int(value) if value else None
