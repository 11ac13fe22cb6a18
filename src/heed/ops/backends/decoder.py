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
# How an engine may keep the weights of dense layers.
WEIGHTS = ("float32", "bfloat16", "int8")
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
    """Self-attention, attention to what is encoded, and a feed-forward part.

    Without attention to what is encoded, as in an encoder, `cross_norm` and the four projections are None.
    """

    self_norm: Norm
    feed_forward_norm: Norm
    query: Dense
    key: Dense
    value: Dense
    output: Dense
    hidden: Dense
    back: Dense
    cross_norm: Norm | None = None
    cross_query: Dense | None = None
    cross_key: Dense | None = None
    cross_value: Dense | None = None
    cross_output: Dense | None = None


@dataclass(frozen=True)
class DecoderStack:
    """The weights of a decoder or an encoder, and how they are put together.

    Attributes:
        heads, kv_heads, head_dim, value_dim: N, K, H, V.
        norm_first: whether a part reads normalised input, or the sum is normalised.
        activation: one of `ACTIVATIONS`.
        epsilon: of all normalisations.
        embedding: (vocabulary, D).
        embedding_scale: multiplies its rows.
        final_norm: before `logits`, or None.
        logits: D to the vocabulary; None in an encoder.
        layers: one after the other.
        weights: what dense layers are kept in, one of `WEIGHTS`; those of the encoder too.
        encoder: of a decoder, the stack that encodes the sources; None where they come encoded. It has the same
            heads, activation, epsilon and order of normalisation.
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
    logits: Dense | None
    layers: tuple[DecoderLayer, ...]
    weights: str = "float32"
    encoder: DecoderStack | None = None


@dataclass(frozen=True)
class Positions:
    """How L tokens know where they stand; None for what is not used.

    Attributes:
        table: (L, D), added to the embedded tokens.
        rotation: (L, H), the cosines, then the sines by which pairs of features c and c + H / 2 are turned.
        relative_bias: added to the scores of query i and key j: [n, L - 1 + j - i] of (N, L) for a decoder, which looks
            back alone, [n, L + j - i] of (N, 2 L) for an encoder.
    """

    table: Any = None
    rotation: Any = None
    relative_bias: Any = None


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
        source: Any,
        source_mask: Any,
        encoded: Any,
        positions: Positions,
        source_positions: Positions,
        search: Search,
    ) -> Any:
        """Tokens (B, L) int32, padded after the end.

        Args:
            stack: the decoder.
            source: (B, S) int32.
            source_mask: (B, S) booleans, True where there is a token.
            encoded: (B, S, D) float32, or None if the stack has an encoder.
            positions, source_positions: of the tokens to decode, and of the sources if they are to be encoded.
            search: how to choose.
        """
        ...
