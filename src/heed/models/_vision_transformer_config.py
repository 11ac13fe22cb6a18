"""The config of a vision Transformer."""

from __future__ import annotations

import dataclasses
from typing import Any

from heed.config import COUNT, COUNT_OR_NONE, REQUIRED, Range, one_of, option, with_default
from heed.layers.layer_config import LayerConfig, describes_options
from heed.models.config import LayersConfig
from heed.number_checks import integer

POSITIONS = ("learned", "sinusoidal")
POOLINGS = ("class", "mean")


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
    pooling: str = option("class", one_of(POOLINGS))
    position: str = option("learned", one_of(POSITIONS))
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
