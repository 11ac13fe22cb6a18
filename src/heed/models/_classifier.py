"""The base of the classifiers on an encoder."""

from __future__ import annotations

from typing import Any

from keras import ops

from heed.layers.attend import pack_outputs
from heed.layers.dropout import Dropout
from heed.layers.flat_dense import FlatDense
from heed.models._encoder import TransformerEncoder
from heed.models._encoder_model import EncoderModel
from heed.models._masked_language_model_config import MaskedLanguageModelConfig
from heed.number_checks import check_integer


class Classifier(EncoderModel):
    """An encoder, and a dense layer that scores the classes of each pooled vector."""

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
        super().build()
        self.output_layer.build((None, None, self.config.width))

    def pool(self, encoded: Any, inputs: Any) -> Any:
        """Return the vectors to classify, from those of the tokens (B, T, D)."""
        return encoded

    def call(
        self, inputs: Any, return_attention_scores: bool = False, training: bool | None = None
    ) -> Any:
        encoded, *scores = self.encode(inputs, return_attention_scores, training)
        logits = self.output_layer(self.drop(self.pool(encoded, inputs), training=training))
        return pack_outputs(ops.cast(logits, "float32"), *scores)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_classes": self.num_classes}
