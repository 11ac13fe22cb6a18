"""Each token of a row to classes."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from heed._numbers import check_integer
from heed.layers.attend import together
from heed.layers.dropout import Dropout
from heed.layers.flat_dense import FlatDense
from heed.models._encoder_model import EncoderModel
from heed.models.encoder import TransformerEncoder
from heed.models.masked_language_model_config import MaskedLanguageModelConfig


@keras.saving.register_keras_serializable(package="heed")
class TokenClassifier(EncoderModel):
    """Each token to scores for each class, such as parts of speech or the names of things.

    `logits_t = W x_t + b` for the vector x_t of each token. Give padding, and what has no label, no weight in the
    loss (`sample_weight`, or `ignore_class` of Keras' crossentropy).

    Args:
        config, num_classes, encoder, **kwargs: As for `SequenceClassifier`.

    Call arguments:
        inputs, return_attention_scores, training: As for `MaskedLanguageModel`.

    Returns:
        Logits (B, T, num_classes), float32; with `return_attention_scores=True` the pair of them and a list with
        (B, N, T, T) for each layer.

    Raises:
        ValueError, TypeError: As `SequenceClassifier`.

    Source:
        Devlin et al. 2019, section 5.3.

    Example:
        >>> import numpy as np
        >>> from heed.models import MaskedLanguageModelConfig, TokenClassifier
        >>> config = MaskedLanguageModelConfig(30, width=8, num_heads=2, feed_forward_width=16)
        >>> model = TokenClassifier(config, num_classes=5)
        >>> tuple(model(np.array([[1, 7, 9, 8, 2, 0]])).shape)
        (1, 6, 5)
    """

    def __init__(
        self,
        config: MaskedLanguageModelConfig,
        num_classes: int,
        encoder: TransformerEncoder | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, encoder, **kwargs)
        self.num_classes = check_integer("num_classes", num_classes, least=1)
        self.drop = Dropout(config.dropout, dtype=self.dtype_policy, name="dropout")
        self.output_layer = FlatDense(self.num_classes, dtype=self.dtype_policy, name="output")

    def build(self, input_shape: Any = None) -> None:
        """Creates the variables."""
        super().build()
        self.output_layer.build((None, None, self.config.width))

    def call(
        self, inputs: Any, return_attention_scores: bool = False, training: bool | None = None
    ) -> Any:
        """See the class for the arguments."""
        encoded, *scores = self.encode(inputs, return_attention_scores, training)
        logits = self.output_layer(self.drop(encoded, training=training))
        return together(ops.cast(logits, "float32"), *scores)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain values."""
        return {**super().get_config(), "num_classes": self.num_classes}
