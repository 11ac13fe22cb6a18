"""The sides of a comparison.

A peer names a function of a module in this folder, which makes random inputs of a case and returns a `Prepared`. Only
the peer's own process imports the module. To add a side, write its function and list it in `PEERS`; a module that
cannot be imported is reported and left out.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.cases import Case

THREADS = "HEED_BENCHMARK_THREADS"
REGISTER_PEAK = "register-peak"
# Ends the name of heed's side with the heed of another interpreter.
BEFORE = "-before"
# Options of the suite "options": those of `tensorflow_ops.heed_option`.
OPTIONS = (
    "causal", "window", "padding", "segments", "dense", "bias", "alibi", "soft-cap", "dropout"
)  # fmt: skip


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
        """Run the case's number of attentions in a row, as `make` makes them, for the time of one more."""
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


def without_window(case: Case) -> Case:
    """Return the whole causal attention, for peers without windows."""
    return replace(case, window=None)


def one_plain_call(case: Case) -> Case:
    """Return a single forward pass, plain or causal, for peers without a graph."""
    return replace(case, chain=1, backward=False, padded=False, window=None)


@dataclass(frozen=True)
class Peer:
    """One side of a comparison."""

    title: str  # in tables
    target: str  # "module:function" of what prepares a case
    kind: str = "dot-product"  # of the cases that it computes
    is_heed: bool = False  # the others are compared with the first such side of a run
    # Whether it has no result to compare: a speed of the machine, a model without its attention or with its own
    # weights. Its memory is not measured.
    is_limit: bool = False
    builds_scores: bool = False  # the whole tensor of them, and so needs memory for it
    computes: Callable[[Case], Case] = lambda case: case  # the case that it computes instead
    options: dict[str, Any] = field(default_factory=dict)  # more arguments of the function
    environment: dict[str, str] = field(default_factory=dict)  # variables of its process
    python: str | None = None  # the interpreter of its process, if not that of this one


def _peer(title: str, target: str, kind: str = "dot-product", **more: Any) -> Peer:
    return Peer(title, f"benchmarks.peers.{target}", kind, **more)


def _heed(target: str, kind: str = "dot-product", title: str = "heed", **more: Any) -> Peer:
    return _peer(title, target, kind, is_heed=True, **more)


_SCORES: dict[str, Any] = {"builds_scores": True}
_LIMIT: dict[str, Any] = {"is_limit": True}
_XLA: dict[str, Any] = {"is_limit": True, "options": {"xla": True}}
PEERS: dict[str, Peer] = {
    "heed": _heed("tensorflow_ops:heed"),
    "heed-portable": _heed("tensorflow_ops:heed_portable", title="heed portable"),
    "torch": _peer(
        "PyTorch SDPA",
        "frameworks:torch",
        computes=without_window,
        environment={"KERAS_BACKEND": "torch"},
    ),
    "jax": _peer("JAX", "frameworks:jax", environment={"KERAS_BACKEND": "jax"}, **_SCORES),
    "naive": _peer("naive TensorFlow", "tensorflow_ops:naive", **_SCORES),
    "keras-op": _peer("keras.ops", "tensorflow_ops:keras_op", **_SCORES),
    "sgemm": _peer("sgemm rate of TensorFlow", "tensorflow_ops:sgemm", **_LIMIT),
    REGISTER_PEAK: Peer("register peak", "benchmarks.register_peak", is_limit=True),
    "heed-eager": _peer("heed, no graph", "tensorflow_ops:heed_eager", computes=one_plain_call),
    "matmul": _peer("tf.matmul node", "tensorflow_ops:matmul_node", **_LIMIT),
    "heed-additive": _heed("tensorflow_ops:heed_additive", "additive"),
    "additive-naive": _peer(
        "naive TensorFlow", "tensorflow_ops:naive_additive", "additive", **_SCORES
    ),
    "additive-keras": _peer(
        "Keras AdditiveAttention", "tensorflow_ops:keras_additive", "additive", **_SCORES
    ),
    "heed-layer": _heed("tensorflow_ops:heed_layer", "layer", "heed layer"),
    "keras-layer": _peer("keras layer", "tensorflow_ops:keras_layer", "layer", **_SCORES),
    "heed-model": _heed("models:accelerated", "model", "accelerated"),
    "keras-model": _peer("stock Keras", "models:stock", "model", **_SCORES),
    "heed-generate": _heed("texts:heed", "generate"),
    # Each thread decodes a part of the texts, or all threads work together on all texts.
    **{
        name: _peer(f"CTranslate2, {split}", "texts:ctranslate2", "generate", options=options)
        for name, split, options in (
            ("ctranslate2", "texts split", {}),
            ("ctranslate2-together", "threads together", {"together": True}),
        )
    },
    # Another model with its own weights, so its texts differ from heed's.
    "hub-generate": _peer("KerasHub BART", "texts:bart", "generate", **_LIMIT),
    "hub-generate-xla": _peer("KerasHub BART with XLA", "texts:bart", "generate", **_XLA),
    "heed-gpt2": _heed("gpt2:accelerated", "continue", "accelerated GPT-2"),
    "hub-gpt2": _peer("KerasHub GPT-2", "gpt2:stock", "continue"),
    "heed-training": _heed("texts:train", "training"),
    # Models with weights of their own.
    "hub-training": _peer("KerasHub", "texts:train_hub", "training", **_LIMIT),
    "hub-training-xla": _peer("KerasHub with XLA", "texts:train_hub", "training", **_XLA),
    "model-rest": _peer("without attention", "models:without_attention", "model", **_LIMIT),
    # The same attention with one more option, for which there is no result to compare with.
    **{
        f"heed-{name}": _peer(
            f"with {name}", "tensorflow_ops:heed_option", options={"name": name}, **_LIMIT
        )
        for name in OPTIONS
    },
}


def named(name: str) -> Peer:
    """Return a peer, or heed's side with another heed."""
    own = PEERS[name.removesuffix(BEFORE)]
    if not name.endswith(BEFORE):
        return own
    return replace(own, title=f"{own.title} before", is_heed=False)


def find_in(name: str, *modules: str) -> Any:
    """Return what heed has in the first of its modules that exists: an older heed, of --before, has it elsewhere."""
    for module in modules:
        try:
            return getattr(importlib.import_module(f"heed.{module}"), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"this heed has no {name} in {', '.join(modules)}")


def threads() -> int | None:
    """Return the number of threads of a side; None lets its library choose."""
    value = os.environ.get(THREADS)
    return int(value) if value else None
