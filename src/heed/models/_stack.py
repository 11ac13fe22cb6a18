"""What the models share: an embedding, Transformer layers one after the other, a normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from heed.layers import TokenEmbedding
from heed.layers.normalization import NORMALIZATIONS
from heed.models._input import InputEmbedding
from heed.models._model import ConfiguredModel


class Stack(ConfiguredModel):
    """Transformer layers one after the other, with what stands before them, an `embedding`, and after them."""

    def make_parts(
        self,
        make_layer: Callable[..., keras.layers.Layer],
        layers: int,
        vocabulary_size: int,
        tokens: TokenEmbedding | None,
        bidirectional: bool,
        num_segments: int = 1,
    ) -> None:
        """Makes the embedding of tokens, so many layers, and the normalisation, from the config."""
        self.embedding: Any = InputEmbedding(
            self.config,
            vocabulary_size,
            bidirectional,
            tokens,
            num_segments,
            dtype=self.dtype_policy,
            name="embedding",
        )
        self.make_layers(make_layer, layers)

    def make_layers(self, make_layer: Callable[..., keras.layers.Layer], layers: int) -> None:
        """Makes so many layers, and the normalisation, from the config."""
        config, policy = self.config, self.dtype_policy
        self.blocks = [
            make_layer(**config.layer_options(), dtype=policy, name=f"layer_{index}")
            for index in range(layers)
        ]
        self.final_norm: Any = None
        if config.norm_first:  # such layers leave their sum as it is
            made = NORMALIZATIONS[config.normalization]
            self.final_norm = made(epsilon=1e-6, dtype=policy, name="final_norm")

    def build(self, input_shape: Any = None) -> None:
        """Creates the variables."""
        shape = (None, None, self.config.width)
        self.embedding.build()
        for block in self.blocks:
            block.build(shape)
        if self.final_norm is not None:
            self.final_norm.build(shape)
