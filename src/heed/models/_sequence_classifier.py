"""Classification of whole rows of tokens."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from heed.layers import DotProductAttention
from heed.models._classifier import Classifier


@keras.saving.register_keras_serializable(package="heed")
class SequenceClassifier(Classifier):
    """Scores each class for a row of tokens.

    `logits = W pool(x) + b`, where `pool` is the attention of one learned query q to the encoder's vectors x, padding
    excluded: `sum_t softmax_t(q x_t / sqrt(D)) x_t`.

    The query starts at 0, so pooling starts as the mean. The mean is a better start than BERT's pooling, the vector of
    the first token: masked language modelling trains the vectors of all tokens, but never that one. The query
    then learns which tokens matter; `heed.inspect` shows it as the attention `pooling`.

    Args:
        config: The options of the model that the encoder comes from.
        num_classes: Number of classes, a positive integer.
        encoder: `model.encoder` of a `MaskedLanguageModel` or another model with the same config. Both models share it,
            so training one changes the other. None (default) makes a new encoder; `set_weights` can copy weights into
            it. A saved model loads with its own copy.
        **kwargs: `name`, `dtype`, as for every Keras model.

    Call arguments:
        inputs, return_attention_scores, training: As for `MaskedLanguageModel`.

    Returns:
        Logits (B, num_classes), float32. With `return_attention_scores=True`, (logits, scores): scores is a list of
        (B, N, T, T), one per layer. A row of only padding is pooled to 0.

    Raises:
        ValueError: If `num_classes` is not a positive integer, or `encoder` has another config.
        TypeError: If `config` or `encoder` has the wrong type.

    Source:
        Devlin et al. 2019, section 3.2; Reimers and Gurevych 2019, section 6 (the mean or the first token);
        Yang et al. 2016 (a learned query).

    Example:
        >>> import numpy as np
        >>> from heed.models import MaskedLanguageModel, MaskedLanguageModelConfig, SequenceClassifier
        >>> config = MaskedLanguageModelConfig(30, width=8, num_heads=2, feed_forward_width=16)
        >>> pretrained = MaskedLanguageModel(config)
        >>> model = SequenceClassifier(config, num_classes=3, encoder=pretrained.encoder)
        >>> tuple(model(np.array([[1, 7, 9, 8, 2, 0]])).shape)
        (1, 3)
    """

    def build(self, input_shape: Any = None) -> None:
        super().build()
        width = self.config.width
        self.query = self.add_weight((width,), "zeros", name="query")
        self.pooling = DotProductAttention(dtype=self.dtype_policy, name="pooling")
        self.pooling.build((None, width), (None, None, width))

    def pool(self, encoded: Any, inputs: Any) -> Any:
        """Pool the vectors of each row into one, (B, D)."""
        query = ops.zeros_like(encoded[:, 0]) + ops.cast(self.query, encoded.dtype)
        return self.pooling(query, encoded, value_mask=self.real_tokens(inputs))
