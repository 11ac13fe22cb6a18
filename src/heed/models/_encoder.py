"""The encoder of a Transformer."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from heed.layers import TokenEmbedding, TransformerEncoderLayer
from heed.models._model import check_call_tokens, check_token_source
from heed.models._stack import Stack
from heed.models.config import TransformerConfig
from heed.number_checks import check_integer


@keras.saving.register_keras_serializable(package="heed")
class TransformerEncoder(Stack):
    """Encodes token ids as one vector for each token, by layers of bidirectional self-attention.

    Args:
        config: Sizes and choices; those for the decoder are ignored.
        tokens: A `TokenEmbedding` to share, or None for a new one.
        num_segments: Number of segments, an integer from 1. Default 1: there are none.
        **kwargs: `name`, `dtype`, as for every Keras model.

    Call arguments:
        source: (B, S) integers. Nothing attends to tokens equal to `config.pad_id`.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether dropout is on.
        segments: (B, S) integers in [0, num_segments): each adds a learned vector to its token. Default: all 0.

    Returns:
        (B, S, D), with `return_attention_scores=True` the pair of it and a list with (B, N, S, S)
        for each layer.

    Raises:
        ValueError: If `num_segments` is not an integer from 1, or a call has segments and `num_segments` is 1.

    Source:
        Vaswani et al. 2017, section 3.1. Segments: Devlin et al. 2019, section 3.

    Example:
        >>> import numpy as np
        >>> from heed.models import TransformerConfig, TransformerEncoder
        >>> config = TransformerConfig(20, 20, width=8, num_heads=2, feed_forward_width=16)
        >>> encoder = TransformerEncoder(config)
        >>> tuple(encoder(np.array([[5, 3, 4, 0]])).shape)
        (1, 4, 8)
    """

    def __init__(
        self,
        config: TransformerConfig,
        tokens: TokenEmbedding | None = None,
        num_segments: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, **kwargs)
        self.num_segments = check_integer("num_segments", num_segments, least=1)
        if config.source_vocabulary_size is None:
            raise ValueError(
                "`config` must have a `source_vocabulary_size` for an encoder of tokens; a Transformer may be given "
                "another `encoder`. Received: source_vocabulary_size=None"
            )
        self.make_parts(
            TransformerEncoderLayer,
            config.encoder_layers,
            config.source_vocabulary_size,
            tokens,
            bidirectional=True,
            num_segments=self.num_segments,
        )

    def check_source(self, source: Any) -> Any:
        """Return the source as an int32 tensor (B, S)."""
        return check_token_source(source, self.config.source_vocabulary_size)

    def source_mask(self, source: Any) -> Any:
        """Return (B, S) booleans, True where `source` (B, S) is not padding."""
        return ops.not_equal(source, self.config.pad_id)

    def call(
        self,
        source: Any,
        return_attention_scores: bool = False,
        training: bool | None = None,
        segments: Any = None,
    ) -> Any:
        source = check_call_tokens("source", source, self.config.source_vocabulary_size, "(B, S)")
        if segments is not None:
            if self.num_segments == 1:
                raise ValueError(
                    "`segments` must be None for an encoder of one segment. Received: num_segments=1, "
                    f"segments.shape={tuple(segments.shape)}"
                )
            segments = check_call_tokens("segments", segments, self.num_segments, "(B, S)")
        # A mask of the scores, not of the positions: rows of padding are computed and never read, which saves a pass
        # over every layer's input.
        mask = self.source_mask(source)[:, None, None, :]
        length = ops.shape(source)[1]
        arguments = self.embedding.attention_arguments(length, length)
        x = self.embedding(source, training=training, segments=segments)
        return self.run_layers(
            x, return_attention_scores, training, attention_mask=mask, **arguments
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_segments": self.num_segments}
