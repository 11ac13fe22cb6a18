"""Whole rows of tokens to classes."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from heed.layers import DotProductAttention
from heed.models._classifier import Classifier


@keras.saving.register_keras_serializable(package="heed")
class SequenceClassifier(Classifier):
    """A row of tokens to scores for each class.

    `logits = W pool(x) + b`, where `pool` is attention of one learned query q to the vectors x of the row's tokens,
    padding excluded: `sum_t softmax_t(q x_t / sqrt(D)) x_t`.

    The query begins as 0, so that what is pooled begins as the mean. The mean is the better start: BERT's pooling,
    the vector of the first token, has been trained by nothing where an encoder has learned from masked tokens
    alone, while all vectors have. The query then learns which tokens matter, and `heed.inspect` shows what it looks
    at, as the attention `pooling`.

    Args:
        config: Sizes and choices, those of the model whose encoder it takes over.
        num_classes: Number of classes, a positive integer.
        encoder: `model.encoder` of a `MaskedLanguageModel` or another model of the same config: shared with it, so
            that training here changes it there too. None: one of its own, which can take over weights by
            `set_weights`. A saved model comes back with an encoder of its own.
        **kwargs: `name`, `dtype`, as for every Keras model.

    Call arguments:
        inputs, return_attention_scores, training: As for `MaskedLanguageModel`.

    Returns:
        Logits (B, num_classes), float32; with `return_attention_scores=True` the pair of them and a list with (B,
        N, T, T) for each layer. A row of padding alone is pooled to 0.

    Raises:
        ValueError: If `num_classes` is not a positive integer, or `encoder` was made from another config.
        TypeError: If `config` or `encoder` is something else.

    Source:
        Devlin et al. 2019, section 3.2; Reimers and Gurevych 2019, section 6 (the mean against the first token);
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
        """Creates the variables."""
        super().build()
        width = self.config.width
        self.query = self.add_weight((width,), "zeros", name="query")
        self.pooling = DotProductAttention(dtype=self.dtype_policy, name="pooling")
        self.pooling.build((None, width), (None, None, width))

    def pool(self, encoded: Any, inputs: Any) -> Any:
        """One vector for each row, (B, D)."""
        query = ops.zeros_like(encoded[:, 0]) + ops.cast(self.query, encoded.dtype)
        return self.pooling(query, encoded, value_mask=self.real_tokens(inputs))
