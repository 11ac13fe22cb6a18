"""The input of a vision Transformer's layers: patches, class token, positions, dropout."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from heed.layers import LearnedPositions
from heed.layers.dropout import Dropout
from heed.layers.flat_dense import FlatDense
from heed.models._vision_transformer_config import VisionTransformerConfig
from heed.ops import sinusoidal_positions


@keras.saving.register_keras_serializable(package="heed")
class PatchEmbedding(keras.layers.Layer):
    """Embeds images (B, height, width, C) as (B, P, D), or with a class token (B, 1 + P, D).

    Args:
        config: The model's sizes and choices.
    """

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
