"""The encoder of a recurrent translator, which reads a source in both directions."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from heed.layers import TokenEmbedding
from heed.layers.dropout import Dropout
from heed.models._model import check_call_tokens
from heed.models._recurrent_translator_config import RecurrentTranslatorConfig

_LAYERS = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}


@keras.saving.register_keras_serializable(package="heed")
class RecurrentEncoder(keras.layers.Layer):
    """Encodes token ids as one state for each, with context from both sides.

    Args:
        config: Sizes and choices.
        **kwargs: `name`, `dtype`, as for every Keras layer.

    Call arguments:
        source: (B, S) integers; those equal to `config.pad_id` change nothing.
        training: Whether dropout is on.

    Returns:
        The states (B, S, D), half of each from either direction; the mask (B, S), True = a token; and the concatenated
        last states of all layers and directions: (B, layers D), or (B, layers 2 D) for an LSTM.
    """

    def __init__(self, config: RecurrentTranslatorConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config, policy = config, self.dtype_policy
        # Padding is masked explicitly, by `pad_id`, as in the other models.
        self.tokens = TokenEmbedding(
            config.source_vocabulary_size,
            config.width,
            mask_zero=False,
            dtype=policy,
            name="tokens",
        )
        self.blocks = [self._make_block(number) for number in range(config.encoder_layers)]
        self.drop = Dropout(config.dropout, dtype=policy, name="dropout")

    def _make_block(self, number: int) -> keras.layers.Layer:
        one_side = _LAYERS[self.config.cell](
            self.config.width // 2,
            return_sequences=True,
            return_state=True,
            name=self.config.cell,
            dtype=self.dtype_policy,
        )
        return keras.layers.Bidirectional(one_side, dtype=self.dtype_policy, name=f"layer_{number}")

    def build(self, input_shape: Any = None) -> None:
        self.tokens.build((None, None))
        for block in self.blocks:
            block.build((None, None, self.config.width))

    def call(self, source: Any, training: bool | None = None) -> tuple[Any, Any, Any]:
        source = check_call_tokens("source", source, self.config.source_vocabulary_size, "(B, S)")
        mask = ops.not_equal(source, self.config.pad_id)
        x, last = self.drop(self.tokens(source), training=training), []
        for block in self.blocks:
            x, *states = block(x, mask=mask, training=training)
            x = self.drop(x, training=training)
            last += states
        return x, mask, ops.concatenate(last, axis=-1)
