"""The table of suites: cases and the peers that compute them, measurements of other kinds, and the bars of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from benchmarks.cases import Case
from benchmarks.peers import BEFORE, OPTIONS, PEERS, REGISTER_PEAK, Peer, named

NARROW = ("avx2", "neon", "baseline")
ALL_SETS = (*NARROW, "avx512", "avx512_bf16", "amx")
ADDITIVE = ("additive-naive", "additive-keras")
OWN = {
    "dot-product": "heed",
    "additive": "heed-additive",
    "model": "heed-model",
    "generate": "heed-generate",
    "training": "heed-training",
    "continue": "heed-gpt2",
}


@dataclass(frozen=True)
class Bar:
    """A bar on the ratio of a peer's time to heed's."""

    case: Case
    peers: tuple[str, ...]  # of which the fastest counts
    at_least: float  # peer's time / heed's time
    at_least_narrow: float | None = None  # for AVX2 and narrower instruction sets, if it is another

    def on(self, instruction_set: str) -> Bar:
        """Return the bar for one of heed's instruction sets."""
        if self.at_least_narrow is None or instruction_set not in NARROW:
            return self
        return replace(self, at_least=self.at_least_narrow)


@dataclass(frozen=True)
class MemoryBar:
    """A bar on the MiB that heed adds beyond inputs and gradients, or on their share of a peer's."""

    case: Case
    below: float
    peer: str | None = None


class Measurement(NamedTuple):
    """A function that takes the number of rounds, and yields rows, and sentences about those it could not measure."""

    target: str  # "module:function", in `benchmarks`
    backend: str = "tensorflow"


@dataclass(frozen=True)
class Suite:
    """What runs together: `python -m benchmarks NAME`."""

    description: str
    times: Sequence[Case] = ()
    memory: Sequence[Case] = ()
    peers: tuple[str, ...] | None = None  # None for all that compute a case's kind
    bars: Sequence[Bar] = ()
    memory_bars: Sequence[MemoryBar] = ()
    measurements: Mapping[str, Measurement] = field(default_factory=dict)  # figures of other kinds
    rounds: int = 25  # the default number of samples of each side
    # Instruction sets with a section in a page, even if nothing is held to them.
    sections: tuple[str, ...] = ()
    note: str = ""  # about the figures

    @classmethod
    def of_bars(cls, description: str, bars: Sequence[Bar], **options: Any) -> Suite:
        """Return a suite of the cases of its bars."""
        times = [*dict.fromkeys(bar.case for bar in bars)]
        memory = [bar.case for bar in options.get("memory_bars", ())]
        return cls(description, times, memory, bars=bars, **options)

    def peers_of(self, case: Case, chosen: Sequence[str] | None = None) -> dict[str, Peer]:
        """Return the sides that compute a case: the chosen ones, or else the suite's and the register peak."""
        wanted: Sequence[str] = chosen or self.peers or ()
        if not wanted and self.bars:
            rivals = [peer for bar in self.bars if bar.case == case for peer in bar.peers]
            wanted = [OWN[case.kind], *rivals]
        elif not wanted:
            wanted = [name for name, peer in PEERS.items() if not peer.is_limit]
        # The peak limits products that are float32 multiply-adds.
        if chosen is None and (case.kind, case.dtype) == ("dot-product", "float32"):
            wanted = [*wanted, REGISTER_PEAK]
        return {name: x for name, x in PEERS.items() if name in wanted and x.kind == case.kind}


def heeds_of(case: Case, chosen: Sequence[str] | None, before: str) -> dict[str, Peer]:
    """Return heed's side of a case, and the same with another interpreter's heed."""
    for name, peer in PEERS.items():
        if peer.is_heed and peer.kind == case.kind and (chosen is None or name in chosen):
            return {name: peer, name + BEFORE: replace(named(name + BEFORE), python=before)}
    return {}


def _four(batch: int, heads: int, length: int, head_dim: int, **options: Any) -> list[Case]:
    """Return forward, causal forward, both with backward."""
    return [
        Case(batch, heads, length, head_dim, causal=causal, backward=backward, **options)
        for backward in (False, True)
        for causal in (False, True)
    ]


def _two(batch: int, heads: int, length: int, head_dim: int, **options: Any) -> list[Case]:
    return [
        Case(batch, heads, length, head_dim, backward=backward, **options)
        for backward in (False, True)
    ]


SHORT, MIDDLE, LONG = (64, 8, 32, 64), (8, 8, 512, 64), (2, 8, 2048, 64)
LONGER, WIDER = (1, 4, 8192, 64), (2, 8, 2048, 128)
BARS = [
    Bar(Case(*SHORT, chain=12), ("torch",), 1.2),
    Bar(Case(*SHORT, chain=12), ("naive",), 2.5),
    Bar(Case(4, 8, 1, 64, keys=2048, chain=12), ("torch",), 1.2),
    Bar(Case(1, 1, 8, 8, chain=50), ("matmul",), 0.67),
    Bar(Case(*MIDDLE), ("torch",), 1.3, 1.2),
    Bar(Case(*MIDDLE, backward=True), ("torch",), 1.4, 1.3),
    Bar(Case(*LONG), ("torch",), 1.3, 1.2),
    Bar(Case(*LONGER), ("torch",), 1.3, 1.25),
    Bar(Case(*WIDER), ("torch",), 1.15, 1.1),
    *(Bar(Case(*shape, causal=True), ("torch",), 1.45, 1.5) for shape in (LONG, LONGER)),
    Bar(Case(*WIDER, causal=True), ("torch",), 1.4),
    Bar(Case(*LONG, backward=True), ("torch",), 1.45, 1.3),
    Bar(Case(*LONG, causal=True, backward=True), ("torch",), 1.6),
    Bar(Case(*LONG, dtype="bfloat16"), ("torch",), 1.8, 1.3),
    Bar(Case(*LONG, dtype="bfloat16", backward=True), ("torch",), 1.6, 1.3),
    Bar(Case(1, 8, 16384, 64, causal=True, window=256), ("torch",), 15.0),
    Bar(Case(1, 8, 4096, 64, causal=True), ("naive",), 4.0),
    Bar(Case(1, 8, 4096, 64, causal=True, backward=True), ("naive",), 3.0),
    Bar(Case(8, 1, 128, 256, kind="additive", backward=True), ADDITIVE, 25.0),
    Bar(Case(4, 1, 512, 256, kind="additive", backward=True), ADDITIVE, 25.0),
    Bar(Case(*LONG), ("sgemm",), 0.9),
]
# Whole models, stock and accelerated.
DECODER, LONG_DECODER = (2, 12, 1024, 64), (1, 12, 4096, 64)
MODEL_BARS = [
    Bar(Case(*DECODER, causal=True, backward=True, kind="model"), ("keras-model",), 1.3),
    Bar(Case(*DECODER, causal=True, kind="model"), ("keras-model",), 1.25),
    Bar(Case(*LONG_DECODER, causal=True, backward=True, kind="model"), ("keras-model",), 1.7),
    Bar(Case(*LONG_DECODER, causal=True, kind="model"), ("keras-model",), 1.9),
    Bar(Case(8, 12, 512, 64, padded=True, kind="model"), ("keras-model",), 1.1),
]

# Decoding whole texts with one model, the same weights on all sides; and a step of its training.
CTRANSLATE2 = ("ctranslate2", "ctranslate2-together")
TRAINING = ("hub-training", "hub-training-xla")
_TEXTS: dict[str, Any] = {"heads": 4, "length": 32, "head_dim": 64, "keys": 32, "kind": "generate"}
# A GPT-2 of width 768 continues prompts, by a few tokens and until its cache is long.
CONTINUED = [Case(8, 12, new, 64, keys=32, kind="continue") for new in (64, 480)]
SEQ2SEQ_BARS = [
    Bar(Case(batch=64, **_TEXTS), CTRANSLATE2, 1.2),
    Bar(Case(batch=64, beams=4, **_TEXTS), CTRANSLATE2, 1.2),
    Bar(Case(batch=1, **_TEXTS), CTRANSLATE2, 1.2),
    Bar(Case(batch=64, weights="int8", **_TEXTS), CTRANSLATE2, 1.2),
    Bar(Case(batch=64, **{**_TEXTS, "kind": "training"}), TRAINING, 1.4),
    Bar(CONTINUED[0], ("hub-gpt2",), 2.0),
    Bar(CONTINUED[1], ("hub-gpt2",), 4.0),
]

LENGTHS = [Case(1, 8, 2**power, 64, backward=True) for power in range(9, 16)]
LAYERS = _four(2, 8, 512, 64, kind="layer") + _four(1, 8, 4096, 64, kind="layer")
_RATIOS = "Ratios are the peer's time / heed's"

SUITES = {
    "bars": Suite.of_bars(
        "heed against the bars that it sets itself",
        BARS,
        memory_bars=[MemoryBar(Case(1, 8, 32768, 64, backward=True), 400.0)],
    ),
    "models": Suite.of_bars(
        "whole Keras models, stock and accelerated, against their bars",
        MODEL_BARS,
        memory_bars=[MemoryBar(MODEL_BARS[2].case, 0.5, "keras-model")],
        peers=("heed-model", "keras-model", "model-rest"),
    ),
    "seq2seq": Suite.of_bars(
        "an encoder-decoder model decodes whole texts and is trained, against its bars",
        SEQ2SEQ_BARS,
    ),
    "ops": Suite(
        "dot-product attention in four sizes, forward and backward, causal and not",
        [case for shape in (SHORT, MIDDLE, LONG, (1, 8, 4096, 64)) for case in _four(*shape)],
        _four(1, 8, 8192, 64)[2:],
    ),
    "variants": Suite(
        "wide heads, a window, grouped heads, padding, bfloat16",
        [
            *_two(2, 8, 2048, 128),
            *_two(1, 8, 16384, 64, causal=True, window=256),
            *_two(1, 32, 2048, 64, key_heads=8),
            *_two(8, 8, 512, 64, padded=True),
            *_two(2, 8, 2048, 64, dtype="bfloat16"),
            *_two(64, 8, 32, 64, dtype="bfloat16"),
        ],
    ),
    "long": Suite(
        "sequences of 512 to 32768, forward and backward, for the plot",
        LENGTHS,
        LENGTHS,
        ("heed", "heed-portable", "torch", "jax", "naive"),
    ),
    "decoding": Suite(
        "one query against a long cache",
        [
            Case(4, 8, 1, 64, keys=512),
            Case(4, 8, 1, 64, keys=2048),
            Case(1, 8, 1, 64, keys=16384),
            Case(4, 32, 1, 64, keys=2048, key_heads=8),
            Case(4, 8, 1, 64, keys=2048, padded=True),
            Case(4, 8, 1, 64, keys=2048, dtype="bfloat16"),
            Case(4, 8, 1, 64, keys=2048, chain=12),
            Case(64, 8, 1, 64, keys=32, chain=12),
        ],
    ),
    "calls": Suite(
        "overhead of a call: tiny attentions in a graph, and called one by one",
        [Case(1, 1, 8, 8, chain=50), Case(1, 8, 8, 64, chain=50)],
        peers=("heed", "heed-eager", "torch", "naive", "matmul"),
    ),
    "options": Suite(
        "each option against plain attention, per visible pair of query and key",
        [*_two(2, 8, 1024, 64), *_two(2, 8, 1024, 64, dtype="bfloat16")],
        peers=("heed", *(f"heed-{option}" for option in OPTIONS)),
    ),
    "additive": Suite(
        "additive attention",
        [
            *_two(8, 1, 128, 256, kind="additive"),
            *_two(4, 1, 512, 256, kind="additive"),
            *_two(64, 1, 32, 256, kind="additive"),
        ],
        [Case(4, 1, 512, 256, kind="additive", backward=True)],
    ),
    "generate": Suite(
        "greedy decoding of whole texts: three layers of encoder and decoder, a vocabulary of 8,000",
        [
            Case(64, 4, 32, 64, keys=32, kind="generate"),
            Case(1, 4, 32, 64, keys=32, kind="generate"),
            Case(8, 4, 128, 64, keys=32, kind="generate"),
            *CONTINUED,
        ],
        peers=("heed-generate", "hub-generate", "hub-generate-xla", "heed-gpt2", "hub-gpt2"),
    ),
    "layers": Suite("multi-head self-attention with projections, as a layer", LAYERS, LAYERS[-2:]),
    "quick": Suite(
        "a small case of each kind, as a trial",
        [
            *_four(1, 4, 256, 64),
            Case(1, 4, 256, 64, causal=True, window=32),
            Case(2, 4, 256, 64, key_heads=2, padded=True, backward=True),
            Case(1, 4, 256, 64, dtype="bfloat16", backward=True),
            Case(2, 4, 1, 64, keys=256),
            Case(2, 4, 1, 64, keys=256, chain=3),
            *_two(2, 1, 32, 64, kind="additive"),
            *_two(1, 4, 256, 64, kind="layer"),
            *_two(2, 4, 64, 16, kind="model", causal=True),
            Case(2, 4, 64, 16, kind="model", padded=True),
        ],
        [Case(1, 4, 1024, 64, backward=True)],
    ),
    "backends": Suite(
        "heed on PyTorch and JAX against their own attention",
        measurements={
            "torch": Measurement("backends:measure_torch", "torch"),
            "torch-call": Measurement("backends:measure_call", "torch"),
            "jax": Measurement("backends:measure_jax", "jax"),
            "jax-memory": Measurement("backends:measure_memory", "jax"),
            "torch-gpt2": Measurement("backends:measure_gpt2", "torch"),
            "jax-gpt2": Measurement("backends:measure_gpt2", "jax"),
            "jax-generate": Measurement("backends:measure_generate", "jax"),
        },
        rounds=15,
        sections=ALL_SETS,
        note=_RATIOS,
    ),
    "score_mods": Suite(
        "functions of the score against FlexAttention, dense attention and heed without them",
        measurements={
            "tensorflow": Measurement("score_mod_calls:measure_dense"),
            "jax": Measurement("score_mod_calls:measure_dense", "jax"),
            "torch": Measurement("score_mod_calls:measure_torch", "torch"),
            "window": Measurement("score_mod_calls:measure_window", "torch"),
            "jax-memory": Measurement("score_mod_calls:measure_memory", "jax"),
            "profile": Measurement("score_mod_calls:measure_profile", "torch"),
        },
        rounds=9,
        sections=("avx2",),
        note=_RATIOS,
    ),
    "language_models": Suite(
        "KerasHub's Llama, accelerated, against stock KerasHub and llama.cpp",
        measurements={
            **{
                name: Measurement(f"language_model_rows:measure_{name}")
                for name in ("float32", "int8", "int4", "outliers", "several")
            },
            **{
                backend: Measurement("language_model_rows:measure_generate", backend)
                for backend in ("tensorflow", "jax", "torch")
            },
        },
        rounds=3,
        sections=ALL_SETS,
        note=_RATIOS,
    ),
    "patching": Suite(
        "patching every head of a GPT-2 form against TransformerLens",
        measurements={"torch": Measurement("patching:measure", "torch")},
        rounds=5,
        note=_RATIOS,
    ),
    "gpu": Suite(
        "heed on a GPU against stock Keras on PyTorch and JAX; tiny sizes on the CPU without one",
        measurements={
            f"{backend}-{what}": Measurement(f"gpu_{what}:measure", backend)
            for what in ("calls", "models")
            for backend in ("torch", "jax")
        },
        rounds=9,
        note="bfloat16; medians of rounds in turn. Ratios are stock Keras' time / heed's",
    ),
    "scale": Suite(
        "several processes on this machine against one",
        measurements={
            "ring": Measurement("scale_ring:measure_memory"),
            "training": Measurement("scale:measure_training"),
            "translate": Measurement("scale:measure_translate"),
        },
        rounds=5,
    ),
    "serving": Suite(
        "`heed serve` with one client and with 32",
        measurements={"serving": Measurement("serving:measure")},
        rounds=2,
    ),
    "large_corpus": Suite(
        "training data from ten million pairs: time and memory",
        measurements={"large_corpus": Measurement("large_corpus:measure")},
        rounds=2,
    ),
}
