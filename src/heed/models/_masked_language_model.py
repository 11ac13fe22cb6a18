"""A masked language model: predicts hidden tokens from the tokens around them."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from heed.layers.attend import pack_outputs
from heed.layers.flat_dense import FlatDense
from heed.layers.normalization import NORMALIZATIONS
from heed.models._encoder_model import EncoderModel
from heed.models._masked_language_model_config import MaskedLanguageModelConfig


@keras.saving.register_keras_serializable(package="heed")
class MaskedLanguageModel(EncoderModel):
    """A bidirectional encoder that predicts hidden tokens from the tokens around them.

    `logits = E norm(activation(W x + b)) + c` for each vector x of the encoder, with the embedding's table E.

    Pre-train it on unlabelled text with `mask_tokens`, which hides tokens and weights the labels. Then fine-tune the
    encoder in a `SequenceClassifier`, `TokenClassifier` or `SpanClassifier` with `encoder=model.encoder`.

    Args:
        config: The model's options. With `tie_embeddings=False` the output layer has its own table.
        **kwargs: `name`, `dtype`, as for every Keras model.

    Call arguments:
        inputs: (B, T) integers, or `{"tokens": (B, T), "segments": (B, T)}`, both integers. Segments default
            to 0. No token attends to `config.pad_id`.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether dropout is on.

    Returns:
        Logits (B, T, vocabulary_size), float32. With `return_attention_scores=True`, (logits, scores): scores is a list
        of (B, N, T, T), one per layer.

    Raises:
        ValueError: If `inputs` is a dict with other keys, or has segments and the config has none.

    Source:
        Devlin et al. 2019, "BERT", sections 3.1 and A.2, without next-sentence prediction, as in Liu et al. 2019
        (RoBERTa).

    Example:
        >>> import numpy as np
        >>> from heed.models import MaskedLanguageModel, MaskedLanguageModelConfig, mask_tokens
        >>> config = MaskedLanguageModelConfig(30, width=8, num_heads=2, feed_forward_width=16)
        >>> model = MaskedLanguageModel(config)
        >>> model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        >>> tokens = np.array([[1, 7, 9, 8, 2, 0], [1, 9, 8, 7, 5, 2]])
        >>> masked, labels, weights = mask_tokens(tokens, config, seed=0)
        >>> history = model.fit(masked, labels, sample_weight=weights, verbose=0)
        >>> tuple(model(tokens).shape)
        (2, 6, 30)
    """

    def __init__(self, config: MaskedLanguageModelConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        policy = self.dtype_policy
        self.head_dense = FlatDense(
            config.width, activation=config.activation, dtype=policy, name="head_dense"
        )
        normalization = NORMALIZATIONS[config.normalization]
        self.head_norm = normalization(epsilon=config.norm_epsilon, dtype=policy, name="head_norm")
        self.output_layer: Any = None
        if not config.tie_embeddings:
            self.output_layer = FlatDense(
                config.vocabulary_size, use_bias=False, dtype=policy, name="output"
            )

    def build(self, input_shape: Any = None) -> None:
        super().build()
        shape = (None, None, self.config.width)
        self.head_dense.build(shape)
        self.head_norm.build(shape)
        if self.output_layer is not None:
            self.output_layer.build(shape)
        self.output_bias = self.add_weight(
            (self.config.vocabulary_size,), "zeros", autocast=False, name="output_bias"
        )

    def call(
        self, inputs: Any, return_attention_scores: bool = False, training: bool | None = None
    ) -> Any:
        encoded, *scores = self.encode(inputs, return_attention_scores, training)
        hidden = self.head_norm(self.head_dense(encoded))
        if self.output_layer is not None:
            logits = self.output_layer(hidden)
        else:
            logits = self.encoder.embedding.tokens.logits(hidden)
        return pack_outputs(ops.cast(logits, "float32") + self.output_bias, *scores)
