"""What a decoder engine gets: stacks of layers with their weights, a batch of sources, and how to choose tokens.

An engine runs a whole decoding loop as one op. Where it cannot, decoding goes on in the graph, one op at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

# The activations of an engine, by Keras' names.
ACTIVATIONS = ("linear", "relu", "gelu", "silu", "sigmoid", "tanh")

METHODS = ("greedy", "sample", "beam")
# How an engine may keep the weights of dense layers.
WEIGHTS = ("float32", "bfloat16", "int8")
MOST_BEAMS = 32


def named_fields(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a part and of its parts: pairs of a path and a number or weight.

    A path is such as "decoder/layer_0/self_attention/query/kernel". Fields that are None are left out; a choice among
    names is the number of its name.
    """
    if dataclasses.is_dataclass(value):
        for part in dataclasses.fields(value):
            names, own = part.metadata.get("names"), getattr(value, part.name)
            yield from named_fields(f"{path}/{part.name}", names.index(own) if names else own)
    elif isinstance(value, tuple):  # layers: layer_0, layer_1, ...
        for index, part in enumerate(value):
            yield from named_fields(f"{path.removesuffix('s')}_{index}", part)
    elif value is not None:
        yield path, value


@dataclass(frozen=True)
class Dense:
    """y = x W + b, with `kernel` (inputs, outputs) in any shape of these numbers; if `transposed` (outputs, inputs)."""

    kernel: Any
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
class ScoreOptions:
    """The options of an attention's scores, by the names of the layer's attributes.

    Attributes:
        sinks: (N,), a score of each head that takes part in the softmax and has no value; or None.
        soft_cap: c bounds scores x to c tanh(x / c); or None.
        sliding_window: W lets the query at i see the key at j only if |i - j| < W, in self-attention; or None.
    """

    sinks: Any = None
    soft_cap: float | None = None
    sliding_window: int | None = None


@dataclass(frozen=True, kw_only=True)
class DecoderAttention(ScoreOptions):
    """Scores q.k / sqrt(H), bounded, plus a bias, through a softmax; heads times the gate; projected back.

    Attributes:
        query, key, value, output: D to N H; what is attended to, to K H and K V; N V to D.
        gate: D to N V: sigmoid(x W + b) multiplies the heads; or None.
        query_norm, key_norm: over the H features of each head, before it is rotated; or None.
    """

    query: Dense
    key: Dense
    value: Dense
    output: Dense
    gate: Dense | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None


@dataclass(frozen=True)
class DecoderLayer:
    """Self-attention, attention to what is encoded, and a feed-forward part.

    Attributes:
        norm_first: whether a part reads normalised input, or the sum is normalised.
        activation: one of `ACTIVATIONS`.
        cross_attention, cross_norm: None in an encoder, and where nothing is encoded.
        hidden, up, back: activation(x hidden) back, or with `up` (activation(x hidden) * (x up)) back.
    """

    norm_first: bool
    activation: str = field(metadata={"names": ACTIVATIONS})
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
    """The weights and settings of a decoder or an encoder.

    Attributes:
        heads, kv_heads, head_dim, value_dim: N, K, H, V of all layers.
        embedding: (vocabulary, D).
        embedding_scale: multiplies its rows.
        embedding_norm: of the embedded tokens with their positions, or None.
        final_norm: before `logits`, or None.
        layers: one after the other.
        weights: the format of dense layers' weights, one of `WEIGHTS`.
        logits: D to the vocabulary; None in an encoder.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    embedding: Any
    embedding_scale: float
    embedding_norm: Norm | None
    final_norm: Norm | None
    layers: tuple[DecoderLayer, ...]
    weights: str = field(metadata={"names": WEIGHTS})
    logits: Dense | None = None


@dataclass(frozen=True)
class Positions:
    """Tables of the positions of L tokens; None for what is not used.

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
class Batch:
    """The sources of a call and what else belongs to its rows.

    Attributes:
        source: (B, S) int32.
        source_mask: (B, S) booleans, True where there is a token.
        encoded: (B, S, D) float32, or None if there is an encoder.
        positions, source_positions: of the tokens to decode, and of the sources if there is an encoder.
        prompt: (B, L) int32, the first tokens of each row, then padding; or None.
        uniform: (B, L) in [0, 1), for "sample"; or None.
        stream: () int64, the number of the open `TokenStream` that gets the tokens of the only source; or None.
    """

    source: Any
    source_mask: Any
    encoded: Any = None
    positions: Positions = Positions()
    source_positions: Positions = Positions()
    prompt: Any = None
    uniform: Any = None
    stream: Any = None


@dataclass(frozen=True)
class Search:
    """How tokens are chosen, and when a row ends.

    Attributes:
        length: L, the number of tokens at most.
        pad, start, end: their ids; the first two are never chosen.
        method: one of `METHODS`.
        temperature, top_k, top_p: of sampling, as in `heed.models.generate`; `top_k` and `top_p` 0: no such cut.
        beam_size, length_penalty: of a beam search, as in `heed.models.generate`; at most `MOST_BEAMS`.
        results: N, the number of hypotheses that a beam search returns for each row.
        return_scores: whether to return their scores; a greedy search has none.
    """

    length: int
    pad: int
    start: int
    end: int
    method: str = field(default="greedy", metadata={"names": METHODS})
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.0
    beam_size: int = 1
    length_penalty: float = 0.0
    results: int = 1
    return_scores: bool = False


class TokenStream(Protocol):
    """Tokens on their way from the thread that decodes them to another one, which reads them as they come.

    Attributes:
        number: for `Batch.stream`.
    """

    number: int

    def read(self, seconds: float) -> list[int] | None:
        """The tokens that have come since the last call, after waiting for the first one.

        Args:
            seconds: the longest time to wait.

        Returns:
            Tokens; an empty list if none came in that time; None if all were read and no more will come.
        """
        ...

    def end(self) -> None:
        """Called by the thread that decodes: no more tokens will come."""
        ...

    def close(self) -> None:
        """Called by the reader: it wants no more tokens, and decoding stops at the next one."""
        ...


class DecoderEngine(Protocol):
    """Runs a decoding loop."""

    def unsupported_reasons(self) -> list[str]:
        """Why it cannot run here and now, as sentences for a person; empty if it can."""
        ...

    def decode(
        self, decoder: DecoderStack, encoder: DecoderStack | None, batch: Batch, search: Search
    ) -> tuple[Any, Any]:
        """Tokens (B, N, L) int32, padded after the end; and their scores (B, N) float32, or None.

        Args:
            decoder: its layers have cross-attention where there are sources.
            encoder: encodes the sources; None where there are none or they come encoded.
            batch: the sources.
            search: how to choose tokens.
        """
        ...

    def open_stream(self) -> TokenStream:
        """A new stream for the tokens of a batch of one source."""
        ...


class NoDecoderEngine:
    """See `DecoderEngine`: for a backend without one, where models decode op by op."""

    def __init__(self, framework: str) -> None:
        self._reason = f"the decoder engine runs on TensorFlow, not yet on {framework}"

    def unsupported_reasons(self) -> list[str]:
        """See `DecoderEngine`."""
        return [self._reason]

    def decode(
        self, decoder: DecoderStack, encoder: DecoderStack | None, batch: Batch, search: Search
    ) -> tuple[Any, Any]:
        """Not called, as there are reasons against it."""
        raise NotImplementedError(self._reason)

    def open_stream(self) -> TokenStream:
        """Not called, as there are reasons against it."""
        raise NotImplementedError(self._reason)
