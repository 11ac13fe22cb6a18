"""A Transformer that reads images as sequences of patches."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from heed.layers import TransformerEncoderLayer
from heed.layers.attend import pack_outputs
from heed.layers.flat_dense import FlatDense
from heed.layers.shapes import agree
from heed.models._image_patches import PatchEmbedding
from heed.models._stack import Stack
from heed.models._vision_transformer_config import VisionTransformerConfig


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
        x, scores = self.run_layers(x, return_attention_scores, training)
        return pack_outputs(x, scores if return_attention_scores else None)

    def call(
        self, images: Any, return_attention_scores: bool = False, training: bool | None = None
    ) -> Any:
        x = self.features(images, return_attention_scores, training)
        if self.head is None:
            return x
        x, *scores = x if return_attention_scores else (x,)
        pooled = x[:, 0] if self.config.pooling == "class" else ops.mean(x, axis=1)
        return pack_outputs(ops.cast(self.head(pooled), "float32"), *scores)
