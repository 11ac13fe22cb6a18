"""What a decoder engine is told: the weights of a stack of layers, the sources, and how to choose tokens.

An engine runs a whole decoding loop as one op. Where it cannot, decoding goes on in the graph, one op at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

# What an engine may be asked to apply, by the names that Keras has for them.
ACTIVATIONS = (
    "linear",
    "relu",
    "gelu",
    "silu",
    "sigmoid",
    "tanh",
    "relu6",
    "leaky_relu",
    "elu",
    "softplus",
)

METHODS = ("greedy", "sample", "beam")
MOST_BEAMS = 32


@dataclass(frozen=True)
class Dense:
    """y = x W + b, with `weight` (inputs, outputs) in any shape of these numbers; if `transposed` (outputs, inputs)."""

    weight: Any
    bias: Any = None
    transposed: bool = False


@dataclass(frozen=True)
class Norm:
    """y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, with (D,) each."""

    gamma: Any
    beta: Any


@dataclass(frozen=True)
class DecoderLayer:
    """Self-attention, attention to what is encoded (or None for all four), and a feed-forward part."""

    self_norm: Norm
    cross_norm: Norm | None
    feed_forward_norm: Norm
    query: Dense
    key: Dense
    value: Dense
    output: Dense
    cross_query: Dense | None
    cross_key: Dense | None
    cross_value: Dense | None
    cross_output: Dense | None
    hidden: Dense
    back: Dense


@dataclass(frozen=True)
class DecoderStack:
    """The weights of a decoder, and how they are put together.

    Attributes:
        heads, kv_heads, head_dim, value_dim: N, K, H, V.
        norm_first: whether a part reads normalised input, or the sum is normalised.
        activation: one of `ACTIVATIONS`.
        epsilon: of all normalisations.
        embedding: (vocabulary, D).
        embedding_scale: multiplies its rows.
        final_norm: before `logits`, or None.
        logits: D to the vocabulary.
        layers: one after the other.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    norm_first: bool
    activation: str
    epsilon: float
    embedding: Any
    embedding_scale: float
    final_norm: Norm | None
    logits: Dense
    layers: tuple[DecoderLayer, ...]


@dataclass(frozen=True)
class Positions:
    """How the tokens 0 .. L - 1 know where they stand; None for what is not used.

    Attributes:
        table: (L, D), added to the embedded tokens.
        rotation: (L, H), the cosines, then the sines by which pairs of features c and c + H / 2 are turned.
        distance_bias: (N, L), added to the score of a key so many positions back.
    """

    table: Any = None
    rotation: Any = None
    distance_bias: Any = None


@dataclass(frozen=True)
class Search:
    """How tokens are chosen, and when a row ends.

    Attributes:
        length: L, how many tokens at most.
        pad, start, end: their ids; the first two are never chosen.
        method: one of `METHODS`.
        uniform: (B, L) in [0, 1), for "sample".
        temperature, top_k, top_p: of drawing, as `heed.models.generate` has them.
        beam_size, length_penalty: of a beam search, the same; at most `MOST_BEAMS`.
    """

    length: int
    pad: int
    start: int
    end: int
    method: str = "greedy"
    uniform: Any = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    beam_size: int = 1
    length_penalty: float = 0.0


class DecoderEngine(Protocol):
    """Runs a decoding loop."""

    def unsupported_reasons(self) -> list[str]:
        """Why it cannot run here and now, as sentences for a person; empty if it can."""
        ...

    def decode(
        self,
        stack: DecoderStack,
        encoded: Any,
        source_mask: Any,
        positions: Positions,
        search: Search,
    ) -> Any:
        """Tokens (B, L) int32, padded after the end.

        `encoded` is (B, S, D) float32, `source_mask` (B, S) booleans, True where there is a token.
        """
        ...
