"""A Transformer that reads images as sequences of patches."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras
from keras import ops

from heed.config import COUNT, COUNT_OR_NONE, REQUIRED, Range, one_of, option, with_default
from heed.layers import LearnedPositions, TransformerEncoderLayer
from heed.layers.attend import pack_outputs
from heed.layers.dropout import Dropout
from heed.layers.flat_dense import FlatDense
from heed.layers.layer_config import LayerConfig, describes_options
from heed.layers.shapes import agree
from heed.models._stack import Stack
from heed.models.config import LayersConfig
from heed.number_checks import integer
from heed.ops import sinusoidal_positions


def _check_size(name: str, value: Any) -> Any:
    """Return an integer, or a pair of them as a tuple, all 1 or more."""
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
    """The options of a vision Transformer.

    Args:
        image_size: Height and width of an image in pixels, an integer for both or the pair (height, width).
        patch_size: Height and width of a patch in pixels, in the form of `image_size`, which they divide.
        channels: Number of channels C: 3 for RGB, 1 for grey. Default 3.
        num_classes: Number of classes, a positive integer; None for a model without a head, which returns features.
        layers: Number of layers. Default 2.
        pooling: The input of the head: "class", a learned token before the patches, or the "mean" of the patches,
            without such a token. Default "class".
        position: Encoding of positions: "learned" vectors, or "sinusoidal" ones, half of whose features encode the row
            and half the column. Default "learned".
        activation: Name of the activation of the feed-forward parts. Default "gelu".
        width: Model width D.
        sliding_window_pattern: As in `TransformerConfig`.
        {options}

    Raises:
        ValueError: If a value is out of range or inconsistent with others; the message names it.

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
    pooling: str = option("class", one_of(("class", "mean")))
    position: str = option("learned", one_of(("learned", "sinusoidal")))
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
        """The number of rows and columns of patches."""
        (height, width, _), (rows, columns) = self.image_shape, self.patch_shape
        return height // rows, width // columns

    @property
    def length(self) -> int:
        """The length of the layers' input: P patches, and the class token if there is one."""
        rows, columns = self.grid
        return rows * columns + (self.pooling == "class")


def _both(size: int | tuple[int, int]) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)


@keras.saving.register_keras_serializable(package="heed")
class PatchEmbedding(keras.layers.Layer):
    """Embeds images (B, height, width, C) as (B, P, D), or with a class token (B, 1 + P, D)."""

    def __init__(self, config: VisionTransformerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config
        policy = self.dtype_policy
        self.patches = FlatDense(config.width, dtype=policy, name="patches")
        self.positions: Any = None
        if config.position == "learned":
            self.positions = LearnedPositions(config.length, dtype=policy, name="positions")
        self.drop = Dropout(config.dropout, dtype=policy, name="dropout")

    def build(self, input_shape: Any = None) -> None:
        config = self.config
        self.patches.build((None, None, math.prod(config.patch_shape) * config.channels))
        if self.positions is not None:
            self.positions.build((None, None, config.width))
        self.class_token: Any = None
        if config.pooling == "class":
            self.class_token = self.add_weight(
                shape=(1, 1, config.width),
                initializer=keras.initializers.RandomNormal(stddev=0.02),
                name="class_token",
            )

    def call(self, images: Any, training: bool | None = None) -> Any:
        config = self.config
        (rows, columns), (height, width) = config.grid, config.patch_shape
        # The patches of all images become the rows of one matrix.
        x = ops.reshape(images, (-1, rows, height, columns, width, config.channels))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
        x = self.patches(ops.reshape(x, (-1, rows * columns, height * width * config.channels)))
        if self.positions is None:
            x = x + ops.cast(self._table(), x.dtype)
        if self.class_token is not None:
            token = ops.cast(ops.convert_to_tensor(self.class_token), x.dtype)
            token = ops.broadcast_to(token, (ops.shape(x)[0], 1, config.width))
            x = ops.concatenate([token, x], axis=1)
        if self.positions is not None:
            x = self.positions(x)
        return self.drop(x, training=training) if config.dropout else x

    def _table(self) -> Any:
        """Return (P, D): half of the features encode the row of a patch, half its column."""
        (rows, columns), half = self.config.grid, self.config.width // 2
        down = sinusoidal_positions(ops.arange(rows, dtype="int32"), half)
        across = sinusoidal_positions(ops.arange(columns, dtype="int32"), half)
        table = [ops.repeat(down, columns, axis=0), ops.tile(across, (rows, 1))]
        return ops.concatenate(table, axis=-1)


@keras.saving.register_keras_serializable(package="heed")
class VisionTransformer(Stack):
    """Classifies images, or encodes them as one vector for each patch, by layers of bidirectional self-attention.

    It cuts an image into patches that do not overlap, projects the pixels of each to the width D and runs the layers of
    a `TransformerEncoder`. Patches are numbered row by row, from the upper left.

    Without a head it is an encoder for a `Transformer` that describes images.

    Args:
        config: Sizes and choices.
        **kwargs: `name`, `dtype`, as for every Keras model.

    Call arguments:
        images: (B, height, width, C) floats; for one channel (B, height, width), too. Values of order 1 train best:
            bytes divided by 255, or standardised by the mean and standard deviation of the data.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether dropout is on.

    Returns:
        Logits (B, num_classes), float32; without a head the features (B, 1 + P, D), the class token first, or
        (B, P, D) with `pooling="mean"`, which has no such token. With `return_attention_scores=True` the pair of them
        and a list with (B, N, 1 + P, 1 + P) (or P) for each layer.

    Raises:
        ValueError: If `images` are not floats of the config's size.

    Source:
        Dosovitskiy et al. 2021 (P = patch_size, N = number of patches, D = width). Sinusoidal positions in two
        dimensions, and the mean in place of the class token: Beyer, Zhai and Kolesnikov 2022.

    Example:
        >>> import numpy as np
        >>> from heed.models import VisionTransformer, VisionTransformerConfig
        >>> sizes = {"width": 8, "num_heads": 2, "feed_forward_width": 16}
        >>> config = VisionTransformerConfig(image_size=8, patch_size=4, num_classes=10, **sizes)
        >>> images = np.zeros((2, 8, 8, 3), "float32")
        >>> tuple(VisionTransformer(config)(images).shape)
        (2, 10)
        >>> config = VisionTransformerConfig(image_size=8, patch_size=4, **sizes)
        >>> tuple(VisionTransformer(config)(images).shape)
        (2, 5, 8)
    """

    config_class = VisionTransformerConfig

    def __init__(self, config: VisionTransformerConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        policy = self.dtype_policy
        self.embedding = PatchEmbedding(config, dtype=policy, name="embedding")
        self.make_layers(TransformerEncoderLayer, config.layers)
        self.head: Any = None
        if config.num_classes is not None:
            self.head = FlatDense(config.num_classes, dtype=policy, name="head")

    def build(self, input_shape: Any = None) -> None:
        super().build()
        if self.head is not None:
            self.head.build((None, self.config.width))

    def check_source(self, source: Any) -> Any:
        """Return the images as a tensor (B, height, width, C)."""
        images, wanted = ops.convert_to_tensor(source), self.config.image_shape
        shape, dtype = tuple(images.shape), keras.backend.standardize_dtype(images.dtype)
        grey = len(shape) == 3 and wanted[-1] == 1
        if not agree((*shape, 1) if grey else shape, (None, *wanted)) or "float" not in dtype:
            raise ValueError(
                f"`images` must be floats of shape (B, {', '.join(map(str, wanted))}), as the config says (divide "
                f"bytes by 255). Received: images.shape={shape}, images.dtype={dtype}"
            )
        return ops.expand_dims(images, -1) if grey else images

    def features(
        self, images: Any, return_attention_scores: bool = False, training: bool | None = None
    ) -> Any:
        """Return the features before pooling, (B, 1 + P, D) or (B, P, D), for the arguments of a call."""
        x = self.embedding(self.check_source(images), training=training)
        return self.run_layers(x, return_attention_scores, training)

    def call(
        self, images: Any, return_attention_scores: bool = False, training: bool | None = None
    ) -> Any:
        x = self.features(images, return_attention_scores, training)
        if self.head is None:
            return x
        x, *scores = x if return_attention_scores else (x,)
        pooled = x[:, 0] if self.config.pooling == "class" else ops.mean(x, axis=1)
        return pack_outputs(ops.cast(self.head(pooled), "float32"), *scores)
