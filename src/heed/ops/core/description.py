"""Describes a decoding for the engine: stacks of layers with their weights, a batch of sources, how to choose tokens.

The fields hold tensors, variables, arrays or `Computed`: `map_tensors` turns one into another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from heed.weights import CACHES, WEIGHTS

# The activations of an engine, by Keras' names.
# "gelu_tanh" is its `gelu(x, approximate=True)`; "quick_gelu", which Keras has not, is x sigmoid(1.702 x).
ACTIVATIONS = ("linear", "relu", "gelu", "silu", "sigmoid", "tanh", "gelu_tanh", "quick_gelu")

METHODS = ("greedy", "sample", "beam")
MOST_BEAMS = 32


def map_tensors(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a part with the result of `function` in place of each tensor in it and in its parts."""
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, Computed)):
        parts = {part.name: getattr(value, part.name) for part in dataclasses.fields(value)}
        return type(value)(**{name: map_tensors(x, function) for name, x in parts.items()})
    if isinstance(value, tuple):
        return tuple(map_tensors(x, function) for x in value)
    return value if value is None or isinstance(value, (str, Real)) else function(value)


@dataclass(frozen=True, eq=False)
class Computed:
    """A weight that is computed from variables when weights are packed: function(*arrays, *settings)."""

    function: Callable[..., Any]  # of a module, so that two descriptions of the same weight agree
    variables: tuple[Any, ...]  # whose arrays it takes
    settings: tuple[Any, ...] = ()  # numbers and tuples, its other arguments


def variables_of(leaf: Any) -> tuple[Any, ...]:
    """Return the variables of a weight of a description."""
    return leaf.variables if isinstance(leaf, Computed) else (leaf,)


def resolve(leaf: Any, read: Callable[[Any], Any]) -> Any:
    """Return the array of a weight of a description; `read` returns that of a variable."""
    if isinstance(leaf, Computed):
        return leaf.function(*map(read, leaf.variables), *leaf.settings)
    return read(leaf)


@dataclass(frozen=True)
class Integers:
    """The kernel of a dense layer as whole numbers times factors. The formats of integers keep these numbers."""

    whole: Any  # int8 (inputs, outputs); if the layer is `transposed` (outputs, inputs)
    factors: Any  # (groups, outputs)
    group: int  # the inputs that share a factor: a multiple of 32, or all

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the kernel, once the numbers are arrays."""
        return tuple(self.whole.shape)


@dataclass(frozen=True)
class Dense:
    """y = x W + b, with `kernel` (inputs, outputs) in any shape of these numbers; if `transposed` (outputs, inputs).

    The kernel may be `Integers`.
    """

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
    """The options of an attention's scores, by the names of the layer's attributes."""

    # (N,), a score of each head that takes part in the softmax and has no value; or None
    sinks: Any = None
    soft_cap: float | None = None  # c bounds scores x to c tanh(x / c); or None
    # W lets the query at i see the key at j only if |i - j| < W, in self-attention; or None
    sliding_window: int | None = None


@dataclass(frozen=True, kw_only=True)
class DecoderAttention(ScoreOptions):
    """Scores q.k times the scale, bounded, plus a bias, through a softmax; heads times the gate; projected back."""

    # `query`, `key`, `value`, `output`: D to N H; what is attended to, to K H and K V; N V to D
    query: Dense
    key: Dense
    value: Dense
    output: Dense
    gate: Dense | None = None  # D to N V: sigmoid(x W + b) multiplies the heads; or None
    # `query_norm`, `key_norm`: over the H features of each head, before it is rotated; or None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    scale: float | None = None  # multiplies q.k; None: 1 / sqrt(H)
    # the table of `Positions.rotation` by which queries and keys are turned; None: they are not
    rotation: int | None = 0


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: each token takes some of E feed-forward parts, and sums them by their weights."""

    count: int  # E
    top_k: int  # how many parts a token takes
    router: Dense  # D to E; softmax(x router) are the weights
    normalized: bool  # whether the weights of the chosen parts are divided by their sum
    # `shared_hidden`, `shared_up`, `shared_back`: a further part that all tokens take, or None
    shared_hidden: Dense | None = None
    shared_up: Dense | None = None
    shared_back: Dense | None = None
    shared_gate: Dense | None = None  # D to 1: sigmoid(x W + b) multiplies that part; or None


@dataclass(frozen=True)
class DecoderLayer:
    """Self-attention, attention to what is encoded, and a feed-forward part."""

    norm_first: bool  # whether a part reads normalised input, or the sum is normalised
    activation: str = field(metadata={"names": ACTIVATIONS})  # one of `ACTIVATIONS`
    self_norm: Norm
    self_attention: DecoderAttention
    feed_forward_norm: Norm
    # `hidden`, `up`, `back`: activation(x hidden) back, or with `up` (activation(x hidden) * (x up)) back
    hidden: Dense
    back: Dense
    up: Dense | None = None
    cross_norm: Norm | None = None
    # `cross_attention`, `cross_norm`: None in an encoder, and where nothing is encoded
    cross_attention: DecoderAttention | None = None
    # whether the feed-forward part reads the input of the layer, as the attention does
    parallel: bool = False
    # `self_post_norm`, `feed_forward_post_norm`: of what a part adds to its input, or None
    self_post_norm: Norm | None = None
    feed_forward_post_norm: Norm | None = None
    # None for a single feed-forward part; else `hidden`, `up` and `back` are (E, inputs, outputs)
    experts: Experts | None = None
    # `gate_limit`, `up_offset`: of a gated part: x hidden is at most this limit, x up is in its bounds; and what is
    # added to x up
    gate_limit: float | None = None
    up_offset: float = 0.0


@dataclass(frozen=True)
class DecoderStack:
    """The weights and settings of a decoder or an encoder."""

    # `heads`, `kv_heads`, `head_dim`, `value_dim`: N, K, H, V of all layers
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    embedding: Any  # (vocabulary, D)
    embedding_scale: float  # multiplies its rows
    embedding_norm: Norm | None  # of the embedded tokens with their positions, or None
    final_norm: Norm | None  # before `logits`, or None
    layers: tuple[DecoderLayer, ...]  # one after the other
    # the format of dense layers' weights, one of `WEIGHTS`
    weights: str = field(metadata={"names": WEIGHTS})
    logits: Dense | None = None  # D to the vocabulary; None in an encoder
    logit_soft_cap: float | None = None  # c bounds logits x to c tanh(x / c); or None
    # P, how many features of each head are turned, the first ones; None: all H
    rotary_dim: int | None = None


@dataclass(frozen=True)
class Positions:
    """Tables of the positions of L tokens; None for what is not used.

    Attributes:
        table: (L, D), added to the embedded tokens.
        rotation: (L, P), the cosines, then the sines by which pairs of features c and c + P / 2 are turned; or of R
            tables (R, L, P).
        relative_bias: added to the scores of query i and key j: [n, L - 1 + j - i] of (N, L) for a decoder, which looks
            back alone, [n, L + j - i] of (N, 2 L) for an encoder.
    """

    table: Any = None
    rotation: Any = None
    relative_bias: Any = None


@dataclass(frozen=True)
class Batch:
    """The sources of a call and what else belongs to its rows."""

    source: Any  # (B, S) int32
    source_mask: Any  # (B, S) booleans, True where there is a token
    encoded: Any = None  # (B, S, D) float32, or None if there is an encoder
    # `positions`, `source_positions`: of the tokens to decode, and of the sources if there is an encoder
    positions: Positions = Positions()
    source_positions: Positions = Positions()
    prompt: Any = None  # (B, L) int32, the first tokens of each row, then padding; or None
    uniform: Any = None  # (B, L) in [0, 1), for "sample"; or None
    # (B,) int32, the token that each row reads first, in place of the start token; or None
    first_tokens: Any = None


@dataclass(frozen=True)
class Search:
    """How tokens are chosen, and when a row ends."""

    length: int  # L, the number of tokens at most
    # `pad`, `start`, `end`: their ids; the first two are never chosen. -1: there is no such token.
    pad: int
    start: int
    end: int
    method: str = field(default="greedy", metadata={"names": METHODS})  # one of `METHODS`
    beam_size: int = 1  # of a beam search, at most `MOST_BEAMS`
    results: int = 1  # N, the number of hypotheses that a beam search returns for each row
    return_scores: bool = False  # whether to return their scores; a greedy search has none
    # more tokens that end a row, after its prompt. A beam search ends when all hypotheses hold one.
    stop_tokens: tuple[int, ...] = ()
    # other fields of `HeedDecoding` by name, such as the `temperature` of samples; 0 if not given
    numbers: Mapping[str, float] = field(default_factory=dict)
    # the format of cached keys and values, one of `CACHES`
    cache: str = field(default="float32", metadata={"names": CACHES})
