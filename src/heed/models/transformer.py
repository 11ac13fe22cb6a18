"""The encoder-decoder Transformer."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from heed.models._model import ConfiguredModel, check_token_source, check_translation
from heed.models.config import TransformerConfig
from heed.models.decoder import TransformerDecoder
from heed.models.encoder import TransformerEncoder


@keras.saving.register_keras_serializable(package="heed")
class Transformer(ConfiguredModel):
    """Encoder and decoder: a source and the target so far, to scores for the target's next tokens.

    Args:
        config: Sizes and choices.
        **kwargs: `name`, `dtype`, as for every Keras model.

    Call arguments:
        inputs: `{"source": (B, S) integers, "target": (B, T) integers}`. The target starts with
            `config.start_id`; the label of token t is token t + 1. Source tokens equal to
            `config.pad_id` are attended to by nobody.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether dropout is on.

    Returns:
        Logits (B, T, target_vocabulary_size), float32. With `return_attention_scores=True` the
        pair of them and `{"encoder": [(B, N, S, S) ...], "decoder": [(B, N, T, T) ...], "cross":
        [(B, N, T, S) ...]}`, an entry for each layer.

    Raises:
        ValueError: If `inputs` lacks the source or the target.

    Source:
        Vaswani et al. 2017 (d_model = D, h = N).

    Example:
        >>> import numpy as np
        >>> from heed.models import Transformer, TransformerConfig
        >>> config = TransformerConfig(20, 30, width=8, num_heads=2, feed_forward_width=16)
        >>> model = Transformer(config)
        >>> logits = model({"source": np.array([[5, 3, 4, 0]]), "target": np.array([[1, 7]])})
        >>> tuple(logits.shape)
        (1, 2, 30)
    """

    def __init__(self, config: TransformerConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        policy = self.dtype_policy
        self.encoder = TransformerEncoder(config, dtype=policy, name="encoder")
        shared = self.encoder.embedding.tokens if config.share_embeddings else None
        self.decoder = TransformerDecoder(config, tokens=shared, dtype=policy, name="decoder")

    def build(self, input_shape: Any = None) -> None:
        """Creates the variables."""
        self.encoder.build()
        self.decoder.build()

    def source_mask(self, source: Any) -> Any:
        """(B, S) booleans, True where `source` (B, S) is not padding."""
        return ops.not_equal(source, self.config.pad_id)

    def encode(
        self, source: Any, training: bool | None = None, return_attention_scores: bool = False
    ) -> Any:
        """Runs the encoder; see `TransformerEncoder` for arguments and result."""
        return self.encoder(
            source, training=training, return_attention_scores=return_attention_scores
        )

    def decode(
        self,
        target: Any,
        encoded: Any = None,
        source_mask: Any = None,
        caches: Any = None,
        cache_index: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Runs the decoder, on whole targets or, with `caches`, on those from `cache_index` on.

        See `TransformerDecoder` for arguments and result. `encoded` is what `encode` returned, `source_mask` what the
        method of that name did.
        """
        return self.decoder(
            target,
            encoded,
            source_mask=source_mask,
            caches=caches,
            cache_index=cache_index,
            training=training,
            return_attention_scores=return_attention_scores,
        )

    def make_caches(self, batch_size: Any, length: int, encoded: Any) -> list[Any]:
        """Caches for decoding `length` tokens of `batch_size` targets, one for each layer.

        Args:
            batch_size: Number of targets, a multiple of B.
            length: Number of tokens that they hold.
            encoded: (B, S, D), what `encode` returned.
        """
        return self.decoder.make_caches(batch_size, length, encoded)

    # What `generate` asks for, see `Decodable`.
    def check_source(self, source: Any) -> Any:
        """The source as an int32 tensor (B, S)."""
        return check_token_source(source)

    def encode_source(self, source: Any) -> dict[str, Any]:
        """What is encoded, its mask, and what each layer's cross-attention reads of it."""
        encoded = self.encode(source, training=False)
        return {
            "encoded": encoded,
            "mask": self.source_mask(source),
            "cross": self.decoder.project(encoded),
        }

    def make_state(self, rows: Any, length: int, memory: Any) -> Any:
        """The keys and values of no tokens."""
        return [cache["self"] for cache in self.decoder.make_caches(rows, length)]

    def decode_step(self, tokens: Any, index: Any, state: Any, memory: Any) -> tuple[Any, Any]:
        """Reads tokens, see `Decodable`."""
        return self.decoder.next_logits(tokens, index, state, memory["cross"], memory["mask"])

    def decode_all(self, tokens: Any, memory: Any) -> Any:
        """Scores for the token after each, see `Decodable`."""
        return self.decode(tokens, memory["encoded"], memory["mask"], training=False)

    def call(
        self, inputs: Any, training: bool | None = None, return_attention_scores: bool = False
    ) -> Any:
        """See the class for the arguments."""
        source, target = check_translation(inputs)
        encoded = self.encode(source, training, return_attention_scores)
        scores: dict[str, Any] = {}
        if return_attention_scores:
            encoded, scores["encoder"] = encoded
        result = self.decode(
            target,
            encoded,
            self.source_mask(source),
            training=training,
            return_attention_scores=return_attention_scores,
        )
        if not return_attention_scores:
            return result
        logits, decoder_scores = result
        return logits, {**scores, **decoder_scores}
