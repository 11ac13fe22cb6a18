"""The cases, each one attention with its shapes and options, and the suites of cases."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SIZES = {"float32": 4, "bfloat16": 2}
MODEL_LAYERS = 4
# Options of the suite "options"; see `peers/heed_option.py`.
OPTIONS = (
    "causal", "window", "padding", "segments", "dense", "bias", "alibi", "soft-cap", "dropout"
)  # fmt: skip
OPTION_SIDES = tuple(f"heed-{option}" for option in OPTIONS)


@dataclass(frozen=True)
class Case:
    """One attention over random inputs.

    Args:
        batch: B.
        heads: N; 1 for additive attention, which has none.
        length: T.
        head_dim: H and V; U and V for additive attention.
        causal: whether query i sees only keys j <= i.
        backward: whether to compute the gradients of all inputs too.
        kind: "dot-product"; "additive"; "layer", self-attention of width N*H with projections; "model", a Transformer
            of that width with four layers, a decoder if causal, else an encoder, whose backward is a training step;
            "generate", an encoder and a decoder of that width with three layers each, which decode T tokens for each
            text of S without ending early; "training", a training step of such a model on texts of S and T tokens;
            "continue", a GPT-2 of that width with four layers, which decodes T tokens after each prompt of S; or
            "language-model", the same by a model of Llama's form with 24 layers.
        keys: S; None for T.
        key_heads: K; None for N.
        window: the number of keys that a query of a causal attention sees, itself included; None for all.
        padded: whether the items have fewer valid keys than S, see `key_lengths`.
        dtype: "float32" or "bfloat16".
        chain: the number of attentions in a row, in one graph for sides with graphs, each with the output of the one
            before as its query. The time is then that of one more, without the call of the graph.
        beams: for "generate", the number of hypotheses of a beam search; 1 is greedy.
        weights: for "generate" and "language-model", how weights are stored, "float32" or "int8".
    """

    batch: int
    heads: int
    length: int
    head_dim: int
    causal: bool = False
    backward: bool = False
    kind: str = "dot-product"
    keys: int | None = None
    key_heads: int | None = None
    window: int | None = None
    padded: bool = False
    dtype: str = "float32"
    chain: int = 1
    beams: int = 1
    weights: str = "float32"

    def __post_init__(self) -> None:
        if self.window is not None and not self.causal:
            raise ValueError("`window` must come with `causal`. Received: causal=False")
        if self.chain > 1 and (
            self.kind in ("layer", "model", "generate", "continue", "language-model", "training")
            or self.backward
        ):
            raise ValueError(
                "`chain` must come with the forward pass of an op. "
                f"Received: kind={self.kind!r}, backward={self.backward}"
            )

    @property
    def name(self) -> str:
        """The name in tables, such as `causal fwd (1, 8, 4096, 64)`."""
        words = [
            f"one of {self.chain}:" if self.chain > 1 else "",
            "additive" if self.kind == "additive" else "",
            f"window {self.window}" if self.window is not None else "",
            "causal" if self.causal else "",
            "padded" if self.padded else "",
            self.dtype if self.dtype != "float32" else "",
            "fwd+bwd" if self.backward else "decoding" if self.length == 1 else "fwd",
        ]
        if self.kind == "model":
            words = [
                "padded" if self.padded else "",
                "decoder" if self.causal else "encoder",
                "training step" if self.backward else "forward",
            ]
        if self.kind == "continue":
            words = ["greedy after a prompt"]
        if self.kind == "language-model":
            words = [
                "language model,",
                self.weights if self.weights != "float32" else "",
                "reading a prompt" if self.length == 1 else "greedy",
            ]
        if self.kind == "generate":
            words = [
                self.weights if self.weights != "float32" else "",
                "greedy" if self.beams == 1 else f"beam {self.beams}",
            ]
        if self.kind == "training":
            words = ["training step"]
        if self.kind == "additive":
            middle = [str(self.length), str(self.key_length)]
        else:
            middle = [_pair(self.heads, self.key_heads), _pair(self.length, self.keys)]
        shape = [self.batch, *middle, self.head_dim]
        return f"{' '.join(filter(None, words))} ({', '.join(map(str, shape))})"

    @property
    def key_length(self) -> int:
        """S."""
        return self.length if self.keys is None else self.keys

    @property
    def key_head_count(self) -> int:
        """K."""
        return self.heads if self.key_heads is None else self.key_heads

    @property
    def key_lengths(self) -> list[int]:
        """Valid keys of each item: all, or for a padded case from a quarter of S to all, evenly spaced."""
        if not self.padded or self.batch == 1:
            return [self.key_length] * self.batch
        least = max(1, self.key_length // 4)
        return [
            least + (self.key_length - least) * item // (self.batch - 1)
            for item in range(self.batch)
        ]

    @property
    def operations(self) -> float:
        """Floating-point operations of the matrix products, by convention without regard to masks."""
        forward = 4.0 * self.batch * self.heads * self.length * self.key_length * self.head_dim
        return forward * (3.5 if self.backward else 1.0)

    @property
    def visible_operations(self) -> float:
        """Floating-point operations of the matrix products, of the pairs that the masks leave visible."""
        pairs = sum(
            max(0, min(query + 1 if self.causal else keys, keys) - first)
            for keys in self.key_lengths
            for query in range(self.length)
            for first in [0 if self.window is None else max(0, query + 1 - self.window)]
        )
        return self.operations * pairs / (self.batch * self.length * self.key_length)

    @property
    def has_register_peak(self) -> bool:
        """Whether its products are float32 multiply-adds, so that the register peak limits them."""
        return self.kind == "dot-product" and self.dtype == "float32"

    @property
    def score_bytes(self) -> int:
        """Size of the float32 score tensor, which heed never builds: (B, N, T, S); (B, T, S, U) for additive."""
        units = self.head_dim if self.kind == "additive" else self.heads
        return self.batch * self.length * self.key_length * units * 4

    @property
    def score_tensors(self) -> int:
        """The number of score tensors that a side which builds them holds at a time, gradients and masks included."""
        if self.kind == "model" and self.backward:
            return (
                3 * MODEL_LAYERS + 1
            )  # each layer keeps attention weights before and after dropout
        return 7

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


def _pair(query: int, key: int | None) -> str:
    return str(query) if key is None else f"{query}/{key}"


@dataclass(frozen=True)
class Suite:
    """Cases that run together.

    Args:
        description: one line.
        times: the cases to measure the time of.
        memory: the cases to measure the peak memory of.
        peers: the sides by name; None for all that compute a case's kind.
    """

    description: str
    times: list[Case]
    memory: list[Case]
    peers: tuple[str, ...] | None = None


def _four(batch: int, heads: int, length: int, head_dim: int, **options: Any) -> list[Case]:
    """Forward, causal forward, both with backward."""
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


LONG = [Case(1, 8, 2**power, 64, backward=True) for power in range(9, 16)]
LAYERS = _four(2, 8, 512, 64, kind="layer") + _four(1, 8, 4096, 64, kind="layer")

# A GPT-2 of width 768 continues prompts, by a few tokens and until its cache is long.
CONTINUED = [Case(8, 12, new, 64, keys=32, kind="continue") for new in (64, 480)]

SUITES = {
    "ops": Suite(
        "dot-product attention in four sizes, forward and backward, causal and not",
        [
            case
            for shape in ((64, 8, 32, 64), (8, 8, 512, 64), (2, 8, 2048, 64), (1, 8, 4096, 64))
            for case in _four(*shape)
        ],
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
        [],
    ),
    "long": Suite(
        "sequences of 512 to 32768, forward and backward, for the plot",
        LONG,
        LONG,
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
        [],
    ),
    "calls": Suite(
        "overhead of a call: tiny attentions in a graph, and called one by one",
        [Case(1, 1, 8, 8, chain=50), Case(1, 8, 8, 64, chain=50)],
        [],
        ("heed", "heed-eager", "torch", "naive", "matmul"),
    ),
    "options": Suite(
        "each option against plain attention, per visible pair of query and key",
        [*_two(2, 8, 1024, 64), *_two(2, 8, 1024, 64, dtype="bfloat16")],
        [],
        ("heed", *OPTION_SIDES),
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
        [],
        ("heed-generate", "hub-generate", "hub-generate-xla", "heed-gpt2", "hub-gpt2"),
    ),
    "layers": Suite(
        "multi-head self-attention with projections, as a layer",
        LAYERS,
        LAYERS[-2:],
    ),
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
}
