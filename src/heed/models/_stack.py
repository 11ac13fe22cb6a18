"""The base of the Transformers: an embedding of the input, a stack of layers, a normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from heed.layers import (
    LearnedPositions,
    RelativePositionBias,
    SinusoidalPositions,
    TokenEmbedding,
)
from heed.layers.dropout import Dropout
from heed.layers.normalization import make_normalization
from heed.models._model import ConfiguredModel
from heed.models.config import TransformerConfig
from heed.ops import alibi_slopes


@keras.saving.register_keras_serializable(package="heed")
class InputEmbedding(keras.layers.Layer):
    """Embeds token ids for the first layer, and makes the attention layers' arguments for positions.

    A stack that sees keys after the query is `bidirectional` (an encoder); `tokens` is an embedding to share, or None
    for a new one; each of several segments has a learned vector.
    """

    def __init__(
        self,
        config: TransformerConfig,
        vocabulary_size: int,
        bidirectional: bool,
        tokens: TokenEmbedding | None = None,
        num_segments: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.config = config
        policy = self.dtype_policy
        # Padding is masked explicitly, by `pad_id`: implicit masks do not leave a tf.function.
        self.tokens = tokens or TokenEmbedding(
            vocabulary_size,
            config.width,
            mask_zero=False,
            scale=config.scale_embeddings,
            dtype=policy,
            name="tokens",
        )
        self.segments: Any = None
        if num_segments > 1:
            self.segments = TokenEmbedding(
                num_segments, config.width, mask_zero=False, dtype=policy, name="segments"
            )
        self.positions: Any = None
        self.bias: Any = None
        if config.position == "sinusoidal":
            self.positions = SinusoidalPositions(dtype=policy, name="positions")
        elif config.position == "learned":
            self.positions = LearnedPositions(config.max_length, dtype=policy, name="positions")
        elif config.position == "relative":
            self.bias = RelativePositionBias(
                config.num_heads, bidirectional=bidirectional, dtype=policy, name="position_bias"
            )
        self.norm: Any = None
        if config.normalize_embeddings:
            self.norm = make_normalization(config, dtype=policy, name="norm")
        self.drop = Dropout(config.dropout, dtype=policy, name="dropout")

    def build(self, input_shape: Any = None) -> None:
        if not self.tokens.built:
            self.tokens.build((None, None))
        if self.segments is not None:
            self.segments.build((None, None))
        if self.positions is not None:
            self.positions.build((None, None, self.config.width))
        if self.bias is not None:
            self.bias.build()
        if self.norm is not None:
            self.norm.build((None, None, self.config.width))

    def call(
        self, ids: Any, start_index: Any = 0, training: bool | None = None, segments: Any = None
    ) -> Any:
        """Return the vectors (B, T, D) of ids (B, T) in segments (B, T); None: all of segment 0."""
        x = self.tokens(ids)
        if self.segments is not None:
            x = x + self.segments(ops.zeros_like(ids) if segments is None else segments)
        if self.positions is not None:
            x = self.positions(x, start_index=start_index)
        if self.norm is not None:
            x = self.norm(x)
        return self.drop(x, training=training) if self.config.dropout else x

    def attention_arguments(
        self, query_length: Any, key_length: Any, start_index: Any = 0
    ) -> dict[str, Any]:
        """Return the positions for each self-attention of the stack, as keyword arguments.

        Lengths T and S, and the key position of query 0, are ints or integer tensors ().
        """
        position = self.config.position
        if position == "rotary":
            return {"rotary_positions": ops.arange(query_length, dtype="int32") + start_index}
        if position == "alibi":
            return {"alibi_slopes": alibi_slopes(self.config.num_heads)}
        if position == "relative":
            bias = self.bias(
                query_length=query_length, key_length=key_length, start_index=start_index
            )
            return {"position_bias": bias}
        return {}


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
            self.final_norm = make_normalization(config, dtype=policy, name="final_norm")

    def run_layers(
        self, x: Any, return_attention_scores: bool, training: bool | None, **arguments: Any
    ) -> Any:
        """Run the layers and the normalisation; return the output, or the pair of it and the scores of each layer."""
        scores: list[Any] = []
        arguments |= {"return_attention_scores": return_attention_scores, "training": training}
        for block in self.blocks:
            x = block(x, **arguments)
            if return_attention_scores:
                x, layer_scores = x
                scores.append(layer_scores)
        x = x if self.final_norm is None else self.final_norm(x)
        return (x, scores) if return_attention_scores else x

    def build(self, input_shape: Any = None) -> None:
        shape = (None, None, self.config.width)
        self.embedding.build()
        for block in self.blocks:
            block.build(shape)
        if self.final_norm is not None:
            self.final_norm.build(shape)
