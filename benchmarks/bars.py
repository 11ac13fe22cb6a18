"""The bars that heed sets itself: the peers, and by how much to beat them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from benchmarks.cases import CONTINUED, Case, Suite
from benchmarks.results import Result, Results, median

SGEMM = ("sgemm-torch", "sgemm-tensorflow", "sgemm-numpy")
NARROW = ("avx2", "neon", "baseline")
ADDITIVE = ("additive-naive", "additive-keras")


@dataclass(frozen=True)
class Bar:
    """A bar on the ratio of a peer's time to heed's.

    Args:
        case: the case that heed computes.
        peers: the peers, of which the fastest counts.
        at_least: the least ratio, peer's time / heed's time.
        at_least_narrow: the same for AVX2 and narrower instruction sets; None for the same.
    """

    case: Case
    peers: tuple[str, ...]
    at_least: float
    at_least_narrow: float | None = None

    def on(self, instruction_set: str) -> Bar:
        """Return the bar for one of heed's instruction sets."""
        if self.at_least_narrow is None or instruction_set not in NARROW:
            return self
        return replace(self, at_least=self.at_least_narrow)


@dataclass(frozen=True)
class MemoryBar:
    """A bar on the MiB that heed adds to its process beyond inputs and gradients."""

    case: Case
    below: float


@dataclass(frozen=True)
class MemoryShareBar:
    """A bar on the memory that heed adds, as a share of a peer's."""

    case: Case
    peer: str
    below: float


@dataclass(frozen=True)
class Verdict:
    """The result of a bar; None for values that were not measured.

    Args:
        bar: the bar.
        heed: heed's seconds.
        peer: the fastest peer.
        seconds: the fastest peer's seconds.
    """

    bar: Bar
    heed: float | None
    peer: str | None
    seconds: float | None

    @property
    def ratio(self) -> float | None:
        """Peer's time / heed's time."""
        return self.seconds / self.heed if self.seconds and self.heed else None

    @property
    def met(self) -> bool | None:
        """Whether the ratio reaches the bar."""
        return None if self.ratio is None else self.ratio >= self.bar.at_least


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
    Bar(Case(*LONG), SGEMM, 0.9),
]

# A language model of 349M parameters: decoding from the start token, and reading a prompt.
LLAMA: dict[str, Any] = {"key_heads": 8, "kind": "language-model"}
BARS += [
    Bar(Case(1, 16, 32, 64, keys=1, **LLAMA), ("llama-cpp",), 1.0),
    Bar(Case(1, 16, 32, 64, keys=1, weights="int8", **LLAMA), ("llama-cpp",), 0.9),
    Bar(Case(1, 16, 1, 64, keys=512, **LLAMA), ("llama-cpp",), 1.0),
]
MEMORY_BARS = [MemoryBar(Case(1, 8, 32768, 64, backward=True), 400.0)]

# Whole models, stock and accelerated.
DECODER, LONG_DECODER = (2, 12, 1024, 64), (1, 12, 4096, 64)
MODEL_BARS = [
    Bar(Case(*DECODER, causal=True, backward=True, kind="model"), ("keras-model",), 1.3),
    Bar(Case(*DECODER, causal=True, kind="model"), ("keras-model",), 1.25),
    Bar(Case(*LONG_DECODER, causal=True, backward=True, kind="model"), ("keras-model",), 1.7),
    Bar(Case(*LONG_DECODER, causal=True, kind="model"), ("keras-model",), 1.9),
    Bar(Case(8, 12, 512, 64, padded=True, kind="model"), ("keras-model",), 1.1),
]
MODEL_MEMORY_BARS = [MemoryShareBar(MODEL_BARS[2].case, "keras-model", 0.5)]

MODELS = "models"
MODEL_SUITE = Suite(
    "whole Keras models, stock and accelerated, against their bars",
    [bar.case for bar in MODEL_BARS],
    [bar.case for bar in MODEL_MEMORY_BARS],
    ("heed-model", "keras-model", "model-rest"),
)

# Decoding whole texts with one model, the same weights on all sides; and a step of its training.
CTRANSLATE2 = ("ctranslate2", "ctranslate2-together")
TRAINING = (
    "keras-training",
    "keras-training-xla",
    "hub-training",
    "hub-training-xla",
    "torch-training",
)
_TEXTS: dict[str, Any] = {"heads": 4, "length": 32, "head_dim": 64, "keys": 32, "kind": "generate"}
SEQ2SEQ_BARS = [
    Bar(Case(batch=64, **_TEXTS), CTRANSLATE2, 1.2),
    Bar(Case(batch=64, beams=4, **_TEXTS), CTRANSLATE2, 1.2),
    Bar(Case(batch=1, **_TEXTS), CTRANSLATE2, 1.2),
    Bar(Case(batch=64, weights="int8", **_TEXTS), CTRANSLATE2, 1.2),
    Bar(Case(batch=64, **{**_TEXTS, "kind": "training"}), TRAINING, 1.4),
    Bar(CONTINUED[0], ("hub-gpt2",), 2.0),
    Bar(CONTINUED[1], ("hub-gpt2",), 4.0),
]
SEQ2SEQ = "seq2seq"
SEQ2SEQ_SUITE = Suite(
    "an encoder-decoder model decodes whole texts and is trained, against its bars",
    [bar.case for bar in SEQ2SEQ_BARS],
    [],
    ("heed-generate", *CTRANSLATE2, "heed-training", *TRAINING, "heed-gpt2", "hub-gpt2"),
)

NAME = "bars"
SUITE = Suite(
    "heed against the bars that it sets itself",
    list(dict.fromkeys(bar.case for bar in BARS)),
    [bar.case for bar in MEMORY_BARS],
)


OWN = {
    "dot-product": "heed",
    "additive": "heed-additive",
    "model": "heed-model",
    "generate": "heed-generate",
    "training": "heed-training",
    "continue": "heed-gpt2",
    "language-model": "heed-language-model",
}


def sides_of(case: Case) -> tuple[str, ...]:
    """Return the side of heed for a case, and the peers of its bars."""
    own = OWN[case.kind]
    return (own, *dict.fromkeys(peer for bar in BARS if bar.case == case for peer in bar.peers))


def judge(bar: Bar, times: Results) -> Verdict:
    """Compare measured times with a bar."""
    by_side: dict[str, Result] = next((sides for case, sides in times if case == bar.case), {})
    seconds = {name: median(by_side[name], by_side) for name in bar.peers if name in by_side}
    known = {name: value for name, value in seconds.items() if value is not None}
    fastest = min(known, key=lambda name: known[name], default=None)
    own = by_side.get(OWN[bar.case.kind])
    return Verdict(
        bar,
        None if own is None else median(own, by_side),
        fastest,
        None if fastest is None else known[fastest],
    )
