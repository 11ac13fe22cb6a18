"""The sizes and choices that define a Transformer."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any

import keras

from heed._numbers import check_integer, check_real
from heed.layers.transformer_layers import NORMALIZATIONS

POSITIONS = ("sinusoidal", "learned", "rotary", "alibi", "relative")

_TOKENS = ("pad_id", "start_id", "end_id")


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Everything that defines a Transformer, checked when it is made.

    Args:
        source_vocabulary_size: Number of source tokens, a positive integer.
        target_vocabulary_size: Number of target tokens, a positive integer.
        width: Model width D, a positive integer that `num_heads` divides.
        num_heads: Number of query heads N.
        num_key_value_heads: Number of key and value heads K, a divisor of N; None means N.
        encoder_layers: Number of encoder layers.
        decoder_layers: Number of decoder layers.
        feed_forward_width: Hidden width of the feed-forward parts.
        dropout: Rate in [0, 1) for embeddings and the output of each part.
        attention_dropout: Rate in [0, 1) for the attention weights.
        activation: Name of the activation of the feed-forward parts.
        norm_first: Whether normalisation comes before each part (pre-norm) or after it (post-norm).
        position: How tokens know where they stand: "sinusoidal" or "learned" vectors added to the
            embeddings, "rotary" queries and keys, or an "alibi" or "relative" (T5) bias of the
            scores.
        max_length: Longest sequence in tokens; binding for "learned" positions only.
        tie_embeddings: Whether the output layer is the target embedding's table.
        share_embeddings: Whether source and target share one table (their vocabularies must be of
            one size).
        pad_id: Token id of padding. Padding in the source is never attended to.
        start_id: Token id that a target starts with.
        end_id: Token id that a target ends with.
        key_dim: Width H of a query and key head, a positive integer; None means D / N.
        value_dim: Width V of a value head, a positive integer; None means H.
        use_bias: Whether the dense layers within the layers have biases.
        soft_cap: Bound c of the attention scores x, which become c tanh(x / c), a positive number; None for none.
        sliding_window: Self-attention sees only tokens less than this many positions away, a positive integer; None
            sees all.
        normalization: "layer" (mean and variance) or "rms" (root mean square, with a scale alone).
        gated: Whether the feed-forward parts are gated linear units: `activation` "silu" makes them SwiGLU.
        qk_norm: Whether queries and keys are normalised (RMS, with a learned scale).
        sinks: Whether each head has a learned score that takes part in the softmax and has no value.

    Raises:
        ValueError: If a value is out of its range or does not go with the others; the message
            names it.

    Example:
        >>> config = TransformerConfig(source_vocabulary_size=16, target_vocabulary_size=40)
        >>> config.width, config.head_dim
        (128, 32)
        >>> TransformerConfig.from_dict(config.to_dict()) == config
        True
        >>> TransformerConfig(16, 40, dropout=1.5)
        Traceback (most recent call last):
        ...
        ValueError: `dropout` must be a finite number with 0 <= dropout < 1. Received: dropout=1.5
    """

    source_vocabulary_size: int
    target_vocabulary_size: int
    width: int = 128
    num_heads: int = 4
    num_key_value_heads: int | None = None
    encoder_layers: int = 2
    decoder_layers: int = 2
    feed_forward_width: int = 512
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation: str = "relu"
    norm_first: bool = True
    position: str = "sinusoidal"
    max_length: int = 512
    tie_embeddings: bool = True
    share_embeddings: bool = False
    pad_id: int = 0
    start_id: int = 1
    end_id: int = 2
    key_dim: int | None = None
    value_dim: int | None = None
    use_bias: bool = True
    soft_cap: float | None = None
    sliding_window: int | None = None
    normalization: str = "layer"
    gated: bool = False
    qk_norm: bool = False
    sinks: bool = False

    def __post_init__(self) -> None:
        # Tokens begin at 0, sizes at 1, and every float is a rate, but for the one that may be left out.
        for name, kind in typing.get_type_hints(type(self)).items():
            if kind is bool:
                self._require(isinstance(getattr(self, name), bool), "be True or False", name)
            elif kind is float:
                self._check(name, check_real, least=0, most=1)
            elif kind == float | None:
                self._check(name, check_real, least=0, exclusive=True, optional=True)
            elif kind is not str:
                least, optional = int(name not in _TOKENS), kind is not int
                self._check(name, check_integer, least=least, optional=optional)
        positions = ", ".join(map(repr, POSITIONS))
        self._require(self.position in POSITIONS, f"be one of {positions}", "position")
        self._require(
            _is_activation(self.activation), "be the name of a Keras activation", "activation"
        )
        kinds = ", ".join(map(repr, NORMALIZATIONS))
        self._require(self.normalization in NORMALIZATIONS, f"be one of {kinds}", "normalization")
        self._check_sizes()

    def _check_sizes(self) -> None:
        require, (D, N, K) = self._require, (self.width, self.num_heads, self.num_key_value_heads)
        whole = self.key_dim is not None or D % N == 0
        require(whole, "divide `width` (or `key_dim` be given)", "num_heads", "width")
        require(N % (K or N) == 0, "divide `num_heads`", "num_key_value_heads", "num_heads")
        even = "be an even multiple of `num_heads` for rotary positions, or `key_dim` be even"
        turned = self.position == "rotary"
        require(not turned or self.head_dim % 2 == 0, even, "width", "num_heads", "key_dim")
        even = "be even for sinusoidal positions"
        require(self.position != "sinusoidal" or D % 2 == 0, even, "width")
        sizes = ("source_vocabulary_size", "target_vocabulary_size")
        same = self.source_vocabulary_size == self.target_vocabulary_size
        apart = "be False where the vocabularies differ in size"
        require(same or not self.share_embeddings, apart, "share_embeddings", *sizes)
        for name in _TOKENS:
            inside = getattr(self, name) < self.target_vocabulary_size
            require(inside, "be below `target_vocabulary_size`", name, "target_vocabulary_size")
        differ = "differ from `start_id` and `end_id`, and they from each other"
        require(len({getattr(self, name) for name in _TOKENS}) == 3, differ, *_TOKENS)

    @property
    def head_dim(self) -> int:
        """Width H of a query and key head, D / N unless it is given."""
        return self.key_dim or self.width // self.num_heads

    def to_dict(self) -> dict[str, Any]:
        """The fields as a dict of plain values, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TransformerConfig:
        """The config with these fields.

        Args:
            values: What `to_dict` returned. Missing fields take their defaults.

        Raises:
            ValueError: If there is a field that this version does not know, or a value is bad.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(
                "`values` must hold fields of TransformerConfig only. "
                f"Received: {', '.join(unknown)}"
            )
        missing = sorted({"source_vocabulary_size", "target_vocabulary_size"} - set(values))
        if missing:
            raise ValueError(
                f"`values` must hold {' and '.join(missing)}. Received: {sorted(values)}"
            )
        return cls(**values)

    def _require(self, holds: bool, requirement: str, name: str, *others: str) -> None:
        if not holds:
            received = ", ".join(f"{field}={getattr(self, field)!r}" for field in (name, *others))
            raise ValueError(f"`{name}` must {requirement}. Received: {received}")

    def _check(self, name: str, check: Callable[..., Any], **bounds: Any) -> None:
        # NumPy's numbers become plain ones, so that `to_dict` can be written as JSON.
        object.__setattr__(self, name, check(name, getattr(self, name), **bounds))


def _is_activation(name: Any) -> bool:
    try:
        return isinstance(name, str) and keras.activations.get(name) is not None
    except ValueError:
        return False
