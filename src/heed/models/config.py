"""The sizes and choices that define a model of Transformer layers."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from heed._config import (
    COUNT,
    COUNT_OR_NONE,
    FLAG,
    INDEX,
    RATE,
    REQUIRED,
    Config,
    Range,
    one_of,
    option,
    with_default,
)
from heed._numbers import integer
from heed.layers.layer_config import LayerConfig, describes_options

ATTENTIONS = ("additive", "dot", "general", "scaled", "location", "none")
CELLS = ("lstm", "gru")
POSITIONS = ("sinusoidal", "learned", "rotary", "alibi", "relative")
IMAGE_POSITIONS = ("learned", "sinusoidal")
POOLINGS = ("class", "mean")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpecialTokens(Config):
    """The token ids with a meaning of their own."""

    pad_id: int = option(0, INDEX)
    start_id: int = option(1, INDEX)
    end_id: int = option(2, INDEX)

    _special_tokens: ClassVar[tuple[str, ...]] = ("pad_id", "start_id", "end_id")

    def _check_tokens(self, size: str) -> None:
        """Checks that the special tokens lie inside the vocabulary whose size is the field of that name, and differ."""
        names = self._special_tokens
        for name in names:
            inside = getattr(self, name) < getattr(self, size)
            self._require(inside, f"be below `{size}`", name, size)
        others = " and ".join(f"`{name}`" for name in names[1:])
        differ = f"differ from {others}, and they from each other"
        self._require(len({getattr(self, name) for name in names}) == len(names), differ, *names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayersConfig(LayerConfig):
    """The options of a stack of layers: those of each layer, and the width."""

    width: int = option(128, COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        named = isinstance(self.activation, str)
        self._require(named, "be the name of a Keras activation", "activation")
        whole = self.key_dim is not None or self.width % self.num_heads == 0
        self._require(whole, "divide `width` (or `key_dim` be given)", "num_heads", "width")

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

    def __post_init__(self) -> None:
        super().__post_init__()
        even = "be an even multiple of `num_heads` for rotary positions, or `key_dim` be even"
        turned = self.position == "rotary"
        self._require(not turned or self.head_dim % 2 == 0, even, "width", "num_heads", "key_dim")
        even = "be even for sinusoidal positions"
        self._require(self.position != "sinusoidal" or self.width % 2 == 0, even, "width")

    @property
    def longest_target(self) -> int | None:
        """Number of tokens of a target at most, None where there is no bound."""
        return self.max_length if self.position == "learned" else None


@describes_options
@dataclasses.dataclass(frozen=True)
class TransformerConfig(TokensConfig):
    """Everything that defines a Transformer, checked when it is made.

    Args:
        source_vocabulary_size: Number of source tokens, a positive integer; None where something else than tokens is
            read, by a `Transformer` with an `encoder` of its own.
        target_vocabulary_size: Number of target tokens, a positive integer.
        width: Model width D, a positive integer that `num_heads` divides.
        encoder_layers: Number of encoder layers.
        decoder_layers: Number of decoder layers.
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
        {options}

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

    source_vocabulary_size: int | None = option(REQUIRED, COUNT_OR_NONE)
    target_vocabulary_size: int = option(REQUIRED, COUNT)
    _: dataclasses.KW_ONLY
    encoder_layers: int = option(2, COUNT)
    decoder_layers: int = option(2, COUNT)
    share_embeddings: bool = option(False, FLAG)

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = ("source_vocabulary_size", "target_vocabulary_size")
        same = self.source_vocabulary_size == self.target_vocabulary_size
        apart = "be False where the vocabularies differ in size"
        self._require(same or not self.share_embeddings, apart, "share_embeddings", *sizes)
        self._check_tokens("target_vocabulary_size")


@dataclasses.dataclass(frozen=True)
class OneStackConfig(TokensConfig):
    """What is to be said of one stack of layers over one vocabulary."""

    vocabulary_size: int = option(REQUIRED, COUNT)
    _: dataclasses.KW_ONLY
    layers: int = option(2, COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_tokens("vocabulary_size")

    @property
    def target_vocabulary_size(self) -> int:
        """The size of the vocabulary that is decoded: there is but one."""
        return self.vocabulary_size

    def of_transformer(self) -> TransformerConfig:
        """The config of an encoder or a decoder of these layers."""
        shared = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(TokensConfig)
        }
        size, layers = self.vocabulary_size, self.layers
        return TransformerConfig(size, size, encoder_layers=layers, decoder_layers=layers, **shared)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(OneStackConfig):
    """Everything that defines a language model, checked when it is made.

    Args:
        vocabulary_size: Number of tokens, a positive integer.
        layers: Number of layers. Default 2.
        position: As in `TransformerConfig`. Default "rotary".
        **others: The fields of `TransformerConfig` that are not of two vocabularies or stacks.

    Raises:
        ValueError: If a value is out of its range or does not go with the others; the message
            names it.

    Example:
        >>> config = LanguageModelConfig(vocabulary_size=260, num_key_value_heads=1, sliding_window=64)
        >>> config.layers, config.position
        (2, 'rotary')
    """

    position: str = with_default(TokensConfig, "position", "rotary")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLanguageModelConfig(OneStackConfig):
    """Everything that defines a masked language model, and what goes on from its encoder, checked when it is made.

    `start_id` is BERT's [CLS], `end_id` its [SEP], `mask_id` its [MASK].

    Args:
        vocabulary_size: Number of tokens, the four special ones among them, an integer from 5.
        layers: Number of layers. Default 2.
        mask_id: Token id that stands where a token is hidden. Default 3.
        num_segments: Number of kinds of text that a row may hold, such as 2 for a question and the text that
            answers it; each adds a learned vector to its tokens (BERT's token types). Default 1, which adds none.
        activation, position: As in `TransformerConfig`. Default "gelu" and "learned", as in BERT.
        **others: The fields of `TransformerConfig` that are not of two vocabularies or stacks, see
            `LanguageModelConfig`.

    Raises:
        ValueError: If a value is out of its range or does not go with the others; the message
            names it.

    Source:
        Devlin et al. 2019 (L = layers, H = width, A = num_heads), whose models are post-norm: `norm_first=False`.

    Example:
        >>> config = MaskedLanguageModelConfig(vocabulary_size=260, num_segments=2)
        >>> config.mask_id, config.position
        (3, 'learned')
        >>> config.special_ids
        (0, 1, 2, 3)
    """

    mask_id: int = option(3, INDEX)
    num_segments: int = option(1, COUNT)
    activation: str = with_default(LayerConfig, "activation", "gelu")
    position: str = with_default(TokensConfig, "position", "learned")

    _special_tokens = (*SpecialTokens._special_tokens, "mask_id")

    def __post_init__(self) -> None:
        super().__post_init__()
        ordinary = self.vocabulary_size > len(self._special_tokens)
        self._require(ordinary, "leave room for an ordinary token", "vocabulary_size")

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of the special tokens, in ascending order: they are never masked, nor put in another one's place."""
        return tuple(sorted(getattr(self, name) for name in self._special_tokens))


def _check_size(name: str, value: Any) -> Any:
    """An integer, or a pair of them as a tuple, all 1 or more."""
    sizes = value if isinstance(value, list | tuple) else (value, value)
    numbers = tuple(map(integer, sizes))
    if len(numbers) != 2 or any(n is None or n < 1 for n in numbers):
        text = f"`{name}` must be an integer >= 1 or a pair of such, (height, width)"
        raise ValueError(f"{text}. Received: {name}={value!r}")
    return numbers if sizes is value else numbers[0]


_SIZE = Range("a positive integer or the pair (height, width)", _check_size)


@describes_options
@dataclasses.dataclass(frozen=True)
class VisionTransformerConfig(LayersConfig):
    """Everything that defines a vision Transformer, checked when it is made.

    Args:
        image_size: Height and width of an image in pixels, an integer for both or the pair (height, width).
        patch_size: Height and width of a patch in pixels, likewise; they divide those of the image.
        channels: Number of channels C: 3 for RGB, 1 for grey. Default 3.
        num_classes: Number of classes, a positive integer; None for a model without a head, which gives features.
        layers: Number of layers. Default 2.
        pooling: What the head reads: "class", a learned token that stands before the patches and looks at them, or
            "mean" over the patches, without such a token. Default "class".
        position: How patches know where they stand: "learned" vectors, or "sinusoidal" ones, half of whose features
            tell the row and half the column. Default "learned".
        activation: Name of the activation of the feed-forward parts. Default "gelu".
        width: Model width D.
        {options}

    Raises:
        ValueError: If a value is out of its range or does not go with the others; the message
            names it.

    Example:
        >>> config = VisionTransformerConfig(image_size=(32, 48), patch_size=8, num_classes=10)
        >>> config.grid, config.length
        ((4, 6), 25)
        >>> VisionTransformerConfig(image_size=28, patch_size=8)
        Traceback (most recent call last):
        ...
        ValueError: `patch_size` must divide `image_size`. Received: patch_size=8, image_size=28
    """

    image_size: int | tuple[int, int] = option(REQUIRED, _SIZE)
    patch_size: int | tuple[int, int] = option(REQUIRED, _SIZE)
    _: dataclasses.KW_ONLY
    channels: int = option(3, COUNT)
    num_classes: int | None = option(None, COUNT_OR_NONE)
    layers: int = option(2, COUNT)
    pooling: str = option("class", one_of(POOLINGS))
    position: str = option("learned", one_of(IMAGE_POSITIONS))
    activation: str = with_default(LayerConfig, "activation", "gelu")

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = all(n % m == 0 for n, m in zip(self.image_shape, self.patch_shape, strict=False))
        self._require(whole, "divide `image_size`", "patch_size", "image_size")
        pairs = self.position != "sinusoidal" or self.width % 4 == 0
        self._require(pairs, "be a multiple of 4 for sinusoidal positions of images", "width")

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of an image."""
        return (*_both(self.image_size), self.channels)

    @property
    def patch_shape(self) -> tuple[int, int]:
        """Height and width of a patch."""
        return _both(self.patch_size)

    @property
    def grid(self) -> tuple[int, int]:
        """How many rows and columns of patches an image has."""
        (height, width, _), (rows, columns) = self.image_shape, self.patch_shape
        return height // rows, width // columns

    @property
    def length(self) -> int:
        """How many positions the layers read: P patches, and the class token where there is one."""
        rows, columns = self.grid
        return rows * columns + (self.pooling == "class")


def _both(size: int | tuple[int, int]) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)


@dataclasses.dataclass(frozen=True)
class RecurrentTranslatorConfig(SpecialTokens):
    """Everything that defines a recurrent translator, checked when it is made.

    Args:
        source_vocabulary_size: Number of source tokens, a positive integer.
        target_vocabulary_size: Number of target tokens, a positive integer.
        width: Width D of embeddings and states, an even positive integer: each side of the encoder has half of it.
            Default 128.
        cell: "lstm" (default) or "gru", in encoder and decoder.
        encoder_layers: Number of layers of the encoder. Default 1.
        decoder_layers: Number of layers of the decoder. Default 1.
        attention: "additive" (Bahdanau; default) or "location" (the same, knowing where it looked before), whose
            context goes into the decoder's cells; "dot", "general" or "scaled" (Luong), which look from the new state;
            or "none": the encoder's last states are all that the decoder knows of the source.
        attention_units: Number U of tanh units of "additive" and "location"; None (default) means D.
        location_filters: For "location": features of the weights before, a positive integer. Default 10.
        location_kernel_size: For "location": how many positions of them one feature sees. Default 31.
        dropout: Rate in [0, 1) for embeddings, the output of each encoder layer and what the output layer reads.
            Default 0.
        tie_embeddings: Whether the output layer is the target embedding's table. Default True.
        pad_id: Token id of padding. Padding of the source changes nothing. Default 0.
        start_id: Token id that a target starts with. Default 1.
        end_id: Token id that a target ends with. Default 2.

    Raises:
        ValueError: If a value is out of its range or does not go with the others; the message
            names it.

    Example:
        >>> RecurrentTranslatorConfig(20, 30, cell="gru", attention="general").attends_inside
        False
        >>> RecurrentTranslatorConfig(20, 30, width=7)
        Traceback (most recent call last):
        ...
        ValueError: `width` must be even. Received: width=7
    """

    source_vocabulary_size: int = option(REQUIRED, COUNT)
    target_vocabulary_size: int = option(REQUIRED, COUNT)
    _: dataclasses.KW_ONLY
    width: int = option(128, COUNT)
    cell: str = option("lstm", one_of(CELLS))
    encoder_layers: int = option(1, COUNT)
    decoder_layers: int = option(1, COUNT)
    attention: str = option("additive", one_of(ATTENTIONS))
    attention_units: int | None = option(None, COUNT_OR_NONE)
    location_filters: int = option(10, COUNT)
    location_kernel_size: int = option(31, COUNT)
    dropout: float = option(0.0, RATE)
    tie_embeddings: bool = option(True, FLAG)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.width % 2 == 0, "be even", "width")
        self._check_tokens("target_vocabulary_size")

    @property
    def attends_inside(self) -> bool:
        """Whether attention is part of the decoder's recurrence."""
        return self.attention in ("additive", "location")

    @property
    def longest_target(self) -> None:
        """Number of tokens of a target at most: there is no bound."""
        return None
