"""The sizes and choices that define a model of Transformer layers."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from typing import Any, ClassVar, TypeVar

import keras

from heed._numbers import check_integer, check_real, integer
from heed.layers.transformer_layers import NORMALIZATIONS

ATTENTIONS = ("additive", "dot", "general", "scaled", "location", "none")
CELLS = ("lstm", "gru")
POSITIONS = ("sinusoidal", "learned", "rotary", "alibi", "relative")
IMAGE_POSITIONS = ("learned", "sinusoidal")
POOLINGS = ("class", "mean")

_TOKENS: tuple[str, ...] = ("pad_id", "start_id", "end_id")

_Made = TypeVar("_Made", bound="Config")


class Config:
    """A dataclass of sizes and choices, checked when it is made; to a dict of plain values and back."""

    _special_tokens: ClassVar[tuple[str, ...]] = _TOKENS

    def to_dict(self) -> dict[str, Any]:
        """The fields as a dict of plain values, ready for JSON."""
        return dataclasses.asdict(self)  # type: ignore[call-overload]

    @classmethod
    def from_dict(cls: type[_Made], values: Mapping[str, Any]) -> _Made:
        """The config with these fields.

        Args:
            values: What `to_dict` returned. Missing fields take their defaults.

        Raises:
            ValueError: If there is a field that this version does not know, or a value is bad.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        unknown = sorted(set(values) - set(fields))
        if unknown:
            raise ValueError(
                f"`values` must hold fields of {cls.__name__} only. Received: {', '.join(unknown)}"
            )
        missing = sorted(
            name
            for name, field in fields.items()
            if field.default is dataclasses.MISSING and name not in values
        )
        if missing:
            raise ValueError(
                f"`values` must hold {' and '.join(missing)}. Received: {sorted(values)}"
            )
        return cls(**values)

    def _check_kinds(self, from_zero: tuple[str, ...] = ()) -> None:
        """Checks each field by its type: sizes begin at 1, those named at 0, and a float is a rate, unless optional."""
        kinds = typing.get_type_hints(type(self))
        for name in (one.name for one in dataclasses.fields(self)):  # type: ignore[arg-type]
            kind = kinds[name]
            if kind is bool:
                self._require(isinstance(getattr(self, name), bool), "be True or False", name)
            elif kind is float:
                self._check(name, check_real, least=0, most=1)
            elif kind == float | None:
                self._check(name, check_real, least=0, exclusive=True, optional=True)
            elif kind == int | tuple[int, int]:
                self._check(name, _check_size)
            elif kind is not str:
                least, optional = int(name not in from_zero), kind is not int
                self._check(name, check_integer, least=least, optional=optional)

    def _check_tokens(self, size: str) -> None:
        """Checks that the special tokens lie inside the vocabulary whose size is the field of that name, and differ."""
        names = self._special_tokens
        for name in names:
            inside = getattr(self, name) < getattr(self, size)
            self._require(inside, f"be below `{size}`", name, size)
        others = " and ".join(f"`{name}`" for name in names[1:])
        differ = f"differ from {others}, and they from each other"
        self._require(len({getattr(self, name) for name in names}) == len(names), differ, *names)

    def _require_one_of(self, allowed: Collection[str], name: str) -> None:
        self._require(
            getattr(self, name) in allowed, f"be one of {', '.join(map(repr, allowed))}", name
        )

    def _require(self, holds: bool, requirement: str, name: str, *others: str) -> None:
        if not holds:
            received = ", ".join(f"{field}={getattr(self, field)!r}" for field in (name, *others))
            raise ValueError(f"`{name}` must {requirement}. Received: {received}")

    def _check(self, name: str, check: Callable[..., Any], **bounds: Any) -> None:
        # NumPy's numbers become plain ones, so that `to_dict` can be written as JSON.
        object.__setattr__(self, name, check(name, getattr(self, name), **bounds))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayersConfig(Config):
    """What is to be said of Transformer layers, whichever model they are in; see `TransformerConfig` for the fields."""

    width: int = 128
    num_heads: int = 4
    num_key_value_heads: int | None = None
    feed_forward_width: int = 512
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation: str = "relu"
    norm_first: bool = True
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
        self._check_kinds(from_zero=self._special_tokens)
        self._require(
            _is_activation(self.activation), "be the name of a Keras activation", "activation"
        )
        self._require_one_of(NORMALIZATIONS, "normalization")
        D, N, K = self.width, self.num_heads, self.num_key_value_heads
        whole = self.key_dim is not None or D % N == 0
        self._require(whole, "divide `width` (or `key_dim` be given)", "num_heads", "width")
        self._require(N % (K or N) == 0, "divide `num_heads`", "num_key_value_heads", "num_heads")

    @property
    def head_dim(self) -> int:
        """Width H of a query and key head, D / N unless it is given."""
        return self.key_dim or self.width // self.num_heads


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokensConfig(LayersConfig):
    """What is to be said where the layers read tokens; see `TransformerConfig` for the fields."""

    position: str = "sinusoidal"
    max_length: int = 512
    tie_embeddings: bool = True
    pad_id: int = 0
    start_id: int = 1
    end_id: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_one_of(POSITIONS, "position")
        even = "be an even multiple of `num_heads` for rotary positions, or `key_dim` be even"
        turned = self.position == "rotary"
        self._require(not turned or self.head_dim % 2 == 0, even, "width", "num_heads", "key_dim")
        even = "be even for sinusoidal positions"
        self._require(self.position != "sinusoidal" or self.width % 2 == 0, even, "width")

    @property
    def longest_target(self) -> int | None:
        """Number of tokens of a target at most, None where there is no bound."""
        return self.max_length if self.position == "learned" else None


@dataclasses.dataclass(frozen=True)
class TransformerConfig(TokensConfig):
    """Everything that defines a Transformer, checked when it is made.

    Args:
        source_vocabulary_size: Number of source tokens, a positive integer; None where something else than tokens is
            read, by a `Transformer` with an `encoder` of its own.
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

    source_vocabulary_size: int | None
    target_vocabulary_size: int
    encoder_layers: int = field(default=2, kw_only=True)
    decoder_layers: int = field(default=2, kw_only=True)
    share_embeddings: bool = field(default=False, kw_only=True)

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

    vocabulary_size: int
    layers: int = field(default=2, kw_only=True)

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


@dataclasses.dataclass(frozen=True)
class LanguageModelConfig(OneStackConfig):
    """Everything that defines a language model, checked when it is made.

    Args:
        vocabulary_size: Number of tokens, a positive integer.
        layers: Number of layers. Default 2.
        position: As in `TransformerConfig`. Default "rotary".
        **others: The fields of `TransformerConfig` that are not of two vocabularies or stacks: `width`, `num_heads`,
            `num_key_value_heads`, `feed_forward_width`, `dropout`, `attention_dropout`, `activation`, `norm_first`,
            `max_length`, `tie_embeddings`, `pad_id`, `start_id`, `end_id`, `key_dim`, `value_dim`, `use_bias`,
            `soft_cap`, `sliding_window`, `normalization`, `gated`, `qk_norm`, `sinks`.

    Raises:
        ValueError: If a value is out of its range or does not go with the others; the message
            names it.

    Example:
        >>> config = LanguageModelConfig(vocabulary_size=260, num_key_value_heads=1, sliding_window=64)
        >>> config.layers, config.position
        (2, 'rotary')
    """

    position: str = field(default="rotary", kw_only=True)


@dataclasses.dataclass(frozen=True)
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

    mask_id: int = field(default=3, kw_only=True)
    num_segments: int = field(default=1, kw_only=True)
    activation: str = field(default="gelu", kw_only=True)
    position: str = field(default="learned", kw_only=True)

    _special_tokens = (*_TOKENS, "mask_id")

    def __post_init__(self) -> None:
        super().__post_init__()
        ordinary = self.vocabulary_size > len(self._special_tokens)
        self._require(ordinary, "leave room for an ordinary token", "vocabulary_size")

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of the special tokens, in ascending order: they are never masked, nor put in another one's place."""
        return tuple(sorted(getattr(self, name) for name in self._special_tokens))


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
        activation: As in `TransformerConfig`. Default "gelu".
        **others: Of the fields of `TransformerConfig` those of the layers: `width`, `num_heads`,
            `num_key_value_heads`, `feed_forward_width`, `dropout`, `attention_dropout`, `norm_first`, `key_dim`,
            `value_dim`, `use_bias`, `soft_cap`, `sliding_window` (patches count row by row), `normalization`,
            `gated`, `qk_norm`, `sinks`.

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

    image_size: int | tuple[int, int]
    patch_size: int | tuple[int, int]
    channels: int = field(default=3, kw_only=True)
    num_classes: int | None = field(default=None, kw_only=True)
    layers: int = field(default=2, kw_only=True)
    pooling: str = field(default="class", kw_only=True)
    position: str = field(default="learned", kw_only=True)
    activation: str = field(default="gelu", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = all(n % m == 0 for n, m in zip(self.image_shape, self.patch_shape, strict=False))
        self._require(whole, "divide `image_size`", "patch_size", "image_size")
        self._require_one_of(POOLINGS, "pooling")
        self._require_one_of(IMAGE_POSITIONS, "position")
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


def _check_size(name: str, value: Any) -> Any:
    """An integer, or a pair of them as a tuple, all 1 or more."""
    sizes = value if isinstance(value, list | tuple) else (value, value)
    numbers = tuple(map(integer, sizes))
    if len(numbers) != 2 or any(n is None or n < 1 for n in numbers):
        text = f"`{name}` must be an integer >= 1 or a pair of such, (height, width)"
        raise ValueError(f"{text}. Received: {name}={value!r}")
    return numbers if sizes is value else numbers[0]


def _both(size: int | tuple[int, int]) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)


@dataclasses.dataclass(frozen=True)
class RecurrentTranslatorConfig(Config):
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

    source_vocabulary_size: int
    target_vocabulary_size: int
    width: int = field(default=128, kw_only=True)
    cell: str = field(default="lstm", kw_only=True)
    encoder_layers: int = field(default=1, kw_only=True)
    decoder_layers: int = field(default=1, kw_only=True)
    attention: str = field(default="additive", kw_only=True)
    attention_units: int | None = field(default=None, kw_only=True)
    location_filters: int = field(default=10, kw_only=True)
    location_kernel_size: int = field(default=31, kw_only=True)
    dropout: float = field(default=0.0, kw_only=True)
    tie_embeddings: bool = field(default=True, kw_only=True)
    pad_id: int = field(default=0, kw_only=True)
    start_id: int = field(default=1, kw_only=True)
    end_id: int = field(default=2, kw_only=True)

    def __post_init__(self) -> None:
        self._check_kinds(from_zero=_TOKENS)
        self._require_one_of(CELLS, "cell")
        self._require_one_of(ATTENTIONS, "attention")
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


def _is_activation(name: Any) -> bool:
    try:
        return isinstance(name, str) and keras.activations.get(name) is not None
    except ValueError:
        return False
