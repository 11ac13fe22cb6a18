"""Classification of each token of a row."""

from __future__ import annotations

import keras

from heed.models._classifier import Classifier


@keras.saving.register_keras_serializable(package="heed")
class TokenClassifier(Classifier):
    """Scores each class for each token, as for parts of speech or named entities.

    `logits_t = W x_t + b`, where x_t is the encoder's vector of token t. Exclude padding and unlabelled tokens from the
    loss (`sample_weight`, or `ignore_class` of Keras' crossentropy).

    Args:
        config, num_classes, encoder, **kwargs: As for `SequenceClassifier`.

    Call arguments:
        inputs, return_attention_scores, training: As for `MaskedLanguageModel`.

    Returns:
        Logits (B, T, num_classes), float32. With `return_attention_scores=True`, (logits, scores): scores is a list of
        (B, N, T, T), one per layer.

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
