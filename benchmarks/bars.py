"""The bars that heed sets itself: against whom, and by how much."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cases import Case, Suite
from benchmarks.results import Result, Results, median

SGEMM = ("sgemm-torch", "sgemm-tensorflow", "sgemm-numpy")
ADDITIVE = ("additive-naive", "additive-keras")


@dataclass(frozen=True)
class Bar:
    """How many times heed's time a peer's has to be.

    Args:
        case: what heed computes.
        peers: of several the quickest counts.
        at_least: the ratio peer's time / heed's time.
    """

    case: Case
    peers: tuple[str, ...]
    at_least: float


@dataclass(frozen=True)
class MemoryBar:
    """How many MiB heed may add to its process, beyond inputs and gradients."""

    case: Case
    below: float


@dataclass(frozen=True)
class MemoryShareBar:
    """What share of the memory that a peer adds heed may add."""

    case: Case
    peer: str
    below: float


@dataclass(frozen=True)
class Verdict:
    """What became of a bar; None where it was not measured.

    Args:
        heed: seconds.
        peer: the quickest peer.
        seconds: the quickest peer's.
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
        """Whether the ratio is at least that of the bar."""
        return None if self.ratio is None else self.ratio >= self.bar.at_least


SHORT, MIDDLE, LONG = (64, 8, 32, 64), (8, 8, 512, 64), (2, 8, 2048, 64)
LONGER, WIDER = (1, 4, 8192, 64), (2, 8, 2048, 128)

BARS = [
    Bar(Case(*SHORT, chain=12), ("torch",), 1.2),
    Bar(Case(*SHORT, chain=12), ("naive",), 2.5),
    Bar(Case(4, 8, 1, 64, keys=2048, chain=12), ("torch",), 1.0),
    Bar(Case(1, 1, 8, 8, chain=50), ("matmul",), 0.67),
    Bar(Case(*MIDDLE), ("torch",), 1.3),
    Bar(Case(*MIDDLE, backward=True), ("torch",), 1.3),
    *(Bar(Case(*shape), ("torch",), 1.3) for shape in (LONG, LONGER)),
    Bar(Case(*WIDER), ("torch",), 1.1),
    *(Bar(Case(*shape, causal=True), ("torch",), 1.45) for shape in (LONG, LONGER)),
    Bar(Case(*WIDER, causal=True), ("torch",), 1.4),
    Bar(Case(*LONG, backward=True), ("torch",), 1.45),
    Bar(Case(*LONG, causal=True, backward=True), ("torch",), 1.6),
    Bar(Case(*LONG, dtype="bfloat16"), ("torch",), 1.8),
    Bar(Case(*LONG, dtype="bfloat16", backward=True), ("torch",), 1.8),
    Bar(Case(1, 8, 16384, 64, causal=True, window=256), ("torch",), 15.0),
    Bar(Case(1, 8, 4096, 64, causal=True), ("naive",), 4.0),
    Bar(Case(1, 8, 4096, 64, causal=True, backward=True), ("naive",), 3.0),
    Bar(Case(8, 1, 128, 256, kind="additive", backward=True), ADDITIVE, 25.0),
    Bar(Case(4, 1, 512, 256, kind="additive", backward=True), ADDITIVE, 25.0),
    Bar(Case(*LONG), SGEMM, 0.9),
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
    "whole Keras models, stock and accelerated, and whether the bars for them are met",
    [bar.case for bar in MODEL_BARS],
    [bar.case for bar in MODEL_MEMORY_BARS],
    ("heed-model", "keras-model", "model-rest"),
)

# Whole texts by one model, whose weights are the same on all sides; and a step of its training.
CTRANSLATE2 = ("ctranslate2", "ctranslate2-together")
TRAINING = (
    "keras-training",
    "keras-training-xla",
    "hub-training",
    "hub-training-xla",
    "torch-training",
)
_TEXTS = {"heads": 4, "length": 32, "head_dim": 64, "keys": 32, "kind": "generate"}
SEQ2SEQ_BARS = [
    Bar(Case(batch=64, **_TEXTS), CTRANSLATE2, 1.2),
    Bar(Case(batch=64, beams=4, **_TEXTS), CTRANSLATE2, 1.0),
    Bar(Case(batch=1, **_TEXTS), CTRANSLATE2, 1.0),
    Bar(Case(batch=64, weights="int8", **_TEXTS), CTRANSLATE2, 0.9),
    Bar(Case(batch=64, **{**_TEXTS, "kind": "training"}), TRAINING, 1.4),
]
SEQ2SEQ = "seq2seq"
SEQ2SEQ_SUITE = Suite(
    "an encoder-decoder writes whole texts and is trained, and whether the bars for that are met",
    [bar.case for bar in SEQ2SEQ_BARS],
    [],
    ("heed-generate", *CTRANSLATE2, "heed-training", *TRAINING),
)

NAME = "bars"
SUITE = Suite(
    "the bars that heed sets itself, and whether they are met",
    list(dict.fromkeys(bar.case for bar in BARS)),
    [bar.case for bar in MEMORY_BARS],
)


OWN = {
    "dot-product": "heed",
    "additive": "heed-additive",
    "model": "heed-model",
    "generate": "heed-generate",
    "training": "heed-training",
}


def sides_of(case: Case) -> tuple[str, ...]:
    """The side of heed and whom it is measured against on a case."""
    own = OWN[case.kind]
    return (own, *dict.fromkeys(peer for bar in BARS if bar.case == case for peer in bar.peers))


def judge(bar: Bar, timed: Results) -> Verdict:
    """Compares what was measured with a bar."""
    by_side: dict[str, Result] = next((sides for case, sides in timed if case == bar.case), {})
    seconds = {name: median(by_side[name], by_side) for name in bar.peers if name in by_side}
    known = {name: value for name, value in seconds.items() if value is not None}
    quickest = min(known, key=lambda name: known[name], default=None)
    own = by_side.get(OWN[bar.case.kind])
    return Verdict(
        bar,
        None if own is None else median(own, by_side),
        quickest,
        None if quickest is None else known[quickest],
    )
