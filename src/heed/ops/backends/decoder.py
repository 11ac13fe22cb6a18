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
    "celu",
    "selu",
    "softsign",
    "squareplus",
    "exponential",
    "mish",
    "log_sigmoid",
    "tanh_shrink",
    "soft_shrink",
    "hard_shrink",
    "sparse_plus",
    "sparse_sigmoid",
    "hard_sigmoid",
    "hard_silu",
    "hard_tanh",
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
    """y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, with a number for each feature.

    With `root_mean_square` it is y = x / sqrt(mean(x^2) + epsilon) * gamma + beta.
    """

    gamma: Any
    beta: Any
    epsilon: float
    root_mean_square: bool = False


@dataclass(frozen=True)
class DecoderAttention:
    """Scores q.k / sqrt(H), bounded, plus a bias, through a softmax; heads times the gate; projected back.

    Attributes:
        query, key, value, output: D to N H; what is attended to, to K H and K V; N V to D.
        gate: D to N V: sigmoid(x W + b) multiplies the heads; or None.
        query_norm, key_norm: over the H features of each head, before it is rotated; or None.
        sinks: (N,), a score of each head that takes part in the softmax and has no value; or None.
        soft_cap: c bounds scores x to c tanh(x / c); or None.
        window: W lets the query at i see the key at j only if |i - j| < W, in self-attention; or None.
    """

    query: Dense
    key: Dense
    value: Dense
    output: Dense
    gate: Dense | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    sinks: Any = None
    soft_cap: float | None = None
    window: int | None = None


@dataclass(frozen=True)
class DecoderLayer:
    """Self-attention, attention to what is encoded, and a feed-forward part.

    Attributes:
        norm_first: whether a part reads normalised input, or the sum is normalised.
        activation: one of `ACTIVATIONS`.
        self_attention, cross_attention: the latter is None in an encoder, and where nothing is encoded.
        hidden, up, back: activation(x hidden) back, or with `up` (activation(x hidden) * (x up)) back.
    """

    norm_first: bool
    activation: str
    self_norm: Norm
    self_attention: DecoderAttention
    feed_forward_norm: Norm
    hidden: Dense
    back: Dense
    up: Dense | None = None
    cross_norm: Norm | None = None
    cross_attention: DecoderAttention | None = None


@dataclass(frozen=True)
class DecoderStack:
    """The weights of a decoder or an encoder, and how they are put together.

    Attributes:
        heads, kv_heads, head_dim, value_dim: N, K, H, V of all layers.
        embedding: (vocabulary, D).
        embedding_scale: multiplies its rows.
        final_norm: before `logits`, or None.
        logits: D to the vocabulary; None in an encoder.
        layers: one after the other.
        weights: what dense layers are kept in, one of `WEIGHTS`; those of the encoder too.
        encoder: of a decoder, the stack that encodes the sources; None where they come encoded.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    embedding: Any
    embedding_scale: float
    final_norm: Norm | None
    layers: tuple[DecoderLayer, ...]
    logits: Dense | None = None
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
        prompt: (B, L) int32, what each row begins with, then padding; or None.
        uniform: (B, L) in [0, 1), for "sample".
        temperature, top_k, top_p: of drawing, as `heed.models.generate` has them.
        beam_size, length_penalty: of a beam search, the same; at most `MOST_BEAMS`.
        results: N, how many hypotheses a beam search gives for each row.
        scored: whether their scores are wanted, which a greedy search has not.
    """

    length: int
    pad: int
    start: int
    end: int
    method: str = "greedy"
    prompt: Any = None
    uniform: Any = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    beam_size: int = 1
    length_penalty: float = 0.0
    results: int = 1
    scored: bool = False


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
    ) -> tuple[Any, Any]:
        """Tokens (B, N, L) int32, padded after the end; and their scores, or None.

        Scores are (B, N) float32, as `heed.models.generate` has them.

        Args:
            stack: the decoder.
            source: (B, S) int32.
            source_mask: (B, S) booleans, True where there is a token.
            encoded: (B, S, D) float32, or None if the stack has an encoder.
            positions, source_positions: of the tokens to decode, and of the sources if they are to be encoded.
            search: how to choose.
        """
        ...
