"""The configs of Transformers, and their bases: special tokens, a stack of layers, and one that reads tokens."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from heed.config import (
    COUNT,
    COUNT_OR_NONE,
    FLAG,
    INDEX,
    POSITIVE_OR_NONE,
    REQUIRED,
    Config,
    one_of,
    option,
)
from heed.layers.layer_config import LayerConfig, describes_options

POSITIONS = ("sinusoidal", "learned", "rotary", "alibi", "relative")
_OF_ROTATION = ("rotary_base", "rotary_dim", "rotary_local_base", "rotary_pattern")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpecialTokens(Config):
    """The ids of special tokens."""

    pad_id: int = option(0, INDEX)
    start_id: int = option(1, INDEX)
    end_id: int = option(2, INDEX)

    _special_tokens: ClassVar[tuple[str, ...]] = ("pad_id", "start_id", "end_id")

    def _check_tokens(self, size: str) -> None:
        """Check that the special tokens differ and are in the vocabulary; `size` names the field of its size."""
        names = self._special_tokens
        for name in names:
            inside = getattr(self, name) < getattr(self, size)
            self._require(inside, f"be below `{size}`", name, size)
        others = " and ".join(f"`{name}`" for name in names[1:])
        differ = f"differ from {others}, and they from each other"
        self._require(len({getattr(self, name) for name in names}) == len(names), differ, *names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayersConfig(LayerConfig):
    """The options of a stack of layers: those of each layer, the width, and what differs between layers."""

    width: int = option(128, COUNT)
    sliding_window_pattern: int | None = option(None, COUNT_OR_NONE)

    def __post_init__(self) -> None:
        super().__post_init__()
        named = isinstance(self.activation, str)
        self._require(named, "be the name of a Keras activation", "activation")
        whole = self.key_dim is not None or self.width % self.num_heads == 0
        self._require(whole, "divide `width` (or `key_dim` be given)", "num_heads", "width")
        has_window = self.sliding_window_pattern is None or self.sliding_window is not None
        names = ("sliding_window_pattern", "sliding_window")
        self._require(has_window, "be None where there is no `sliding_window`", *names)
        for name in _OF_ROTATION:
            is_default = getattr(self, name, None) == getattr(type(self), name, None)
            turns = getattr(self, "position", None) == "rotary"
            apart = 'have its default where `position` is not "rotary"'
            self._require(turns or is_default, apart, name)

    def options_of_layer(self, index: int) -> dict[str, Any]:
        """Return the options of one layer of the stack."""
        options, every = self.layer_options(), self.sliding_window_pattern
        if every is not None and index % every == every - 1:
            options["sliding_window"] = None
        return options

    @property
    def head_dim(self) -> int:
        """Width H of a query and key head, D / N unless it is given."""
        return self.key_dim or self.width // self.num_heads


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokensConfig(SpecialTokens, LayersConfig):
    """The options of a stack of layers that reads tokens."""

    position: str = option("sinusoidal", one_of(POSITIONS))
    max_length: int = option(512, COUNT)
    tie_embeddings: bool = option(True, FLAG)
    scale_embeddings: bool = option(True, FLAG)
    normalize_embeddings: bool = option(False, FLAG)
    rotary_local_base: float | None = option(None, POSITIVE_OR_NONE)
    rotary_pattern: int | None = option(None, COUNT_OR_NONE)

    def __post_init__(self) -> None:
        super().__post_init__()
        even = "be an even multiple of `num_heads` for rotary positions, or `key_dim` be even"
        needs_even = self.position == "rotary" and self.rotary_dim is None
        self._require(
            not needs_even or self.head_dim % 2 == 0, even, "width", "num_heads", "key_dim"
        )
        within = (self.rotary_dim or 0) <= self.head_dim
        sizes = ("width", "num_heads", "key_dim")
        self._require(within, "be at most the width of a head", "rotary_dim", *sizes)
        local = self.rotary_local_base is None or self.sliding_window is not None
        names = ("rotary_local_base", "sliding_window")
        self._require(local, "be None where there is no `sliding_window`", *names)
        even = "be even for sinusoidal positions"
        self._require(self.position != "sinusoidal" or self.width % 2 == 0, even, "width")

    def options_of_layer(self, index: int) -> dict[str, Any]:
        """Return the options of one layer of the stack."""
        options, every = super().options_of_layer(index), self.rotary_pattern
        if options["sliding_window"] is not None and self.rotary_local_base is not None:
            options["rotary_base"] = self.rotary_local_base
        if every is not None and index % every == every - 1:
            options["rotary_dim"] = 0
        return options

    @property
    def longest_target(self) -> int | None:
        """The largest number of tokens of a target, or None if there is no limit."""
        return self.max_length if self.position == "learned" else None


@describes_options
@dataclasses.dataclass(frozen=True)
class TransformerConfig(TokensConfig):
    """The options of a Transformer.

    Args:
        source_vocabulary_size: Number of source tokens, a positive integer; None for a `Transformer` with a custom
            `encoder` of something else.
        target_vocabulary_size: Number of target tokens, a positive integer.
        width: Model width D, a positive integer that `num_heads` divides.
        encoder_layers: Number of encoder layers.
        decoder_layers: Number of decoder layers.
        position: Encoding of positions: "sinusoidal" or "learned" vectors added to the embeddings, "rotary" queries and
            keys, or an "alibi" or "relative" (T5) bias of the scores.
        max_length: Longest sequence in tokens; a limit for "learned" positions only.
        tie_embeddings: Whether the output layer is the target embedding's table.
        scale_embeddings: Whether embeddings are multiplied by the root of the width.
        normalize_embeddings: Whether the sum of embedding and position is normalised, as in BART.
        logit_soft_cap: c bounds logits x to c tanh(x / c), as in Gemma 2; None leaves them as they are.
        sliding_window_pattern: n: every n-th layer sees the whole sequence, the others `sliding_window` (2: Gemma 2, 6:
            Gemma 3). None: all layers are alike.
        rotary_local_base: `rotary_base` of the layers with a `sliding_window` (Gemma 3). None: all layers have one.
        rotary_pattern: n: every n-th layer has no rotary positions (4: SmolLM3). None: all layers have them.
        share_embeddings: Whether source and target share one table (their vocabularies must have the same size).
        pad_id: Token id of padding. Nothing attends to padding of the source.
        start_id: First token id of a target.
        end_id: Last token id of a target.
        {options}

    Raises:
        ValueError: If a value is out of range or inconsistent with others; the message names it.

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

    source_vocabulary_size: int | None = option(REQUIRED, COUNT_OR_NONE)
    target_vocabulary_size: int = option(REQUIRED, COUNT)
    _: dataclasses.KW_ONLY
    encoder_layers: int = option(2, COUNT)
    decoder_layers: int = option(2, COUNT)
    share_embeddings: bool = option(False, FLAG)
    logit_soft_cap: float | None = option(None, POSITIVE_OR_NONE)

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = ("source_vocabulary_size", "target_vocabulary_size")
        same = self.source_vocabulary_size == self.target_vocabulary_size
        apart = "be False where the vocabularies differ in size"
        self._require(same or not self.share_embeddings, apart, "share_embeddings", *sizes)
        self._check_tokens("target_vocabulary_size")


@dataclasses.dataclass(frozen=True)
class OneStackConfig(TokensConfig):
    """The options of one stack of layers over one vocabulary."""

    vocabulary_size: int = option(REQUIRED, COUNT)
    _: dataclasses.KW_ONLY
    layers: int = option(2, COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_tokens("vocabulary_size")

    @property
    def target_vocabulary_size(self) -> int:
        """The size of the only vocabulary."""
        return self.vocabulary_size

    def of_transformer(self) -> TransformerConfig:
        """Return the config of an encoder or a decoder with these options."""
        known = {field.name for field in dataclasses.fields(TransformerConfig)}
        own = {field.name for field in dataclasses.fields(self)}
        shared = {name: getattr(self, name) for name in known & own}
        size, layers = self.vocabulary_size, self.layers
        return TransformerConfig(size, size, encoder_layers=layers, decoder_layers=layers, **shared)
