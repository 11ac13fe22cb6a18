"""The sides of a comparison.

A peer is a module in this folder with a function `prepare(case)`, which makes random inputs and returns a `Prepared`.
Only the peer's own process imports the module. To add a side, write its module and list it in `PEERS`; a module that
cannot be imported is reported and left out.
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
REGISTER_PEAK = "register-peak"


@dataclass(frozen=True)
class Prepared:
    """A case that is ready to run.

    Args:
        run: computes it once and returns when the values are there.
        arrays: converts the result of `run` to float32 arrays for the comparison with heed's: the output in heed's
            layout, then the gradients of the inputs and of any weights.
        portion: a factor for the time of `run`, for a side that computes something else than the case.
        base: a function whose time is subtracted from that of `run`.
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
        """Run the case's number of attentions in a row, for the time of one more.

        Args:
            case: the case.
            make: makes a function that computes so many attentions in a row.
            arrays: as above.
        """
        if case.chain == 1:
            return cls(make(1), arrays)
        return cls(make(case.chain), arrays, 1 / (case.chain - 1), make(1))


def repeat(attention: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Call attention `count` times, each with the output of the one before as its query."""

    def run(query: Any, *others: Any) -> Any:
        for _ in range(count):
            query = attention(query, *others)
        return query

    return run


def same_case(case: Case) -> Case:
    """For peers that compute every case."""
    return case


def without_window(case: Case) -> Case:
    """For peers without windows, which compute the whole causal attention instead."""
    return dataclasses.replace(case, window=None)


@dataclass(frozen=True)
class Peer:
    """One side of a comparison.

    Args:
        title: its name in tables.
        module: the module of its `prepare`.
        kind: the kind of cases that it computes.
        is_heed: whether it is heed; the others are compared with the first such side of a run.
        is_limit: whether it has no result to compare: a speed of the machine, a model without its attention or with
            its own weights. Its memory is not measured.
        is_variant: whether it is another heed; it is compared only with heed, and --peers does not take it.
        builds_scores: whether it builds the whole score tensor, and so needs memory for it.
        computes: maps a case to the one that it computes instead.
        environment: environment variables of its process.
        python: the interpreter of its process; None for the one that runs the benchmarks.
    """

    title: str
    module: str
    kind: str = "dot-product"
    is_heed: bool = False
    is_limit: bool = False
    is_variant: bool = False
    builds_scores: bool = False
    computes: Callable[[Case], Case] = same_case
    environment: dict[str, str] = field(default_factory=dict)
    python: str | None = None


def one_plain_call(case: Case) -> Case:
    """For peers without a graph, which compute a single forward pass, plain or causal."""
    return dataclasses.replace(case, chain=1, backward=False, padded=False, window=None)


def _limit(library: str, title: str) -> Peer:
    # By default OpenBLAS' idle threads spin for a tenth of a second.
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
    REGISTER_PEAK: Peer("register peak", _HERE + "register_peak", is_limit=True),
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
    # Each thread decodes a part of the texts, or all threads work together on all texts.
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
    # Another model with its own weights, so its texts differ from heed's.
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
    "heed-language-model": Peer(
        "heed", _HERE + "heed_language_model", "language-model", is_heed=True
    ),
    "llama-cpp": Peer("llama.cpp", _HERE + "llama_cpp_language_model", "language-model"),
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


# The same attention with one more option, for which there is no result to compare with.
PEERS |= {
    name: Peer(f"with {option}", _HERE + "heed_option", is_limit=True, environment={OPTION: option})
    for name, option in zip(OPTION_SIDES, OPTIONS, strict=True)
}


BEFORE = "-before"
# Each side of heed again, for an interpreter with another heed.
PEERS |= {
    name + BEFORE: dataclasses.replace(
        peer, title=f"{peer.title} before", is_heed=False, is_variant=True
    )
    for name, peer in PEERS.items()
    if peer.is_heed
}


def instruction_sets() -> list[str]:
    """Return the native library's instruction sets from the one in use on, best first. Imports no framework."""
    package = importlib.util.find_spec("heed")
    folders = (package and package.submodule_search_locations) or []
    for file in (Path(folder) / "_lib" / "libheed_core.so" for folder in folders):
        if file.exists():
            library = ctypes.CDLL(str(file))
            if not hasattr(library, "heed_instruction_set_name"):
                return []  # an older heed, in a process of `--before`
            ask, in_use = library.heed_instruction_set_name, library.heed_instruction_set
            ask.restype = in_use.restype = ctypes.c_char_p
            names = [
                name.decode() for name in itertools.takewhile(bool, map(ask, itertools.count()))
            ]
            return names[names.index(in_use().decode()) :]
    return []


WITH = "-with-"
# Each side of heed with kernels again, with the kernels for each instruction set.
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
    """Import a side and prepares a case."""
    prepared: Prepared = importlib.import_module(module).prepare(case)
    return prepared


def threads() -> int | None:
    """Return the number of threads of a side; None lets its library choose."""
    value = os.environ.get(THREADS)
    return int(value) if value else None
