"""The base of the models: an embedding, a stack of Transformer layers, a normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from heed.layers import TokenEmbedding
from heed.layers.normalization import NORMALIZATIONS
from heed.models._input import InputEmbedding
from heed.models._model import ConfiguredModel


class Stack(ConfiguredModel):
    """A stack of Transformer layers between an `embedding` and a normalisation."""

    def make_parts(
        self,
        make_layer: Callable[..., keras.layers.Layer],
        layers: int,
        vocabulary_size: int,
        tokens: TokenEmbedding | None,
        bidirectional: bool,
        num_segments: int = 1,
    ) -> None:
        """Make the embedding of tokens, the layers and the normalisation from the config."""
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
        """Make the layers, of this number, and the normalisation from the config."""
        config, policy = self.config, self.dtype_policy
        self.blocks = [
            make_layer(**config.options_of_layer(index), dtype=policy, name=f"layer_{index}")
            for index in range(layers)
        ]
        self.final_norm: Any = None
        if config.norm_first:  # such layers do not normalise their output
            normalization = NORMALIZATIONS[config.normalization]
            self.final_norm = normalization(
                epsilon=config.norm_epsilon, dtype=policy, name="final_norm"
            )

    def run_layers(
        self, x: Any, return_attention_scores: bool, training: bool | None, **arguments: Any
    ) -> tuple[Any, list[Any]]:
        """Run the layers and the normalisation; return the output and the scores of each layer, if requested."""
        scores: list[Any] = []
        arguments |= {"return_attention_scores": return_attention_scores, "training": training}
        for block in self.blocks:
            x = block(x, **arguments)
            if return_attention_scores:
                x, layer_scores = x
                scores.append(layer_scores)
        return x if self.final_norm is None else self.final_norm(x), scores

    def build(self, input_shape: Any = None) -> None:
        shape = (None, None, self.config.width)
        self.embedding.build()
        for block in self.blocks:
            block.build(shape)
        if self.final_norm is not None:
            self.final_norm.build(shape)
