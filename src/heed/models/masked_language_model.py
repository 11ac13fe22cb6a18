"""A masked language model: tokens, some of them hidden, to scores for what stands at each place."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from heed.layers.attend import pack_outputs
from heed.layers.flat_dense import FlatDense
from heed.layers.normalization import NORMALIZATIONS
from heed.models._encoder_model import EncoderModel
from heed.models.masked_language_model_config import MaskedLanguageModelConfig


@keras.saving.register_keras_serializable(package="heed")
class MaskedLanguageModel(EncoderModel):
    """A bidirectional encoder that tells hidden tokens from what stands around them.

    `logits = E norm(activation(W x + b)) + c` for each vector x of the encoder, with the embedding's table E.

    `mask_tokens` hides tokens and says which count; then what the encoder has learned from text without labels goes
    into a model for a task: `SequenceClassifier`, `TokenClassifier` or `SpanClassifier`, with
    `encoder=model.encoder`.

    Args:
        config: Sizes and choices. Without `tie_embeddings` the output layer has a table of its own.
        **kwargs: `name`, `dtype`, as for every Keras model.

    Call arguments:
        inputs: (B, T) integers, or `{"tokens": (B, T), "segments": (B, T)}`, both integers; without segments all is
            of segment 0. Tokens equal to `config.pad_id` are attended to by nobody.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether dropout is on.

    Returns:
        Logits (B, T, vocabulary_size), float32; with `return_attention_scores=True` the pair of them and a list with
        (B, N, T, T) for each layer.

    Raises:
        ValueError: If `inputs` is another dict, or has segments where the config has none.

    Source:
        Devlin et al. 2019, "BERT", sections 3.1 and A.2; the second task there, next sentences, is left out, as in
        Liu et al. 2019 (RoBERTa).

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
        made = NORMALIZATIONS[config.normalization]
        self.head_norm = made(epsilon=1e-6, dtype=policy, name="head_norm")
        self.output_layer: Any = None
        if not config.tie_embeddings:
            self.output_layer = FlatDense(
                config.vocabulary_size, use_bias=False, dtype=policy, name="output"
            )

    def build(self, input_shape: Any = None) -> None:
        """Creates the variables."""
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
        """See the class for the arguments."""
        encoded, *scores = self.encode(inputs, return_attention_scores, training)
        hidden = self.head_norm(self.head_dense(encoded))
        if self.output_layer is not None:
            logits = self.output_layer(hidden)
        else:
            logits = self.encoder.embedding.tokens.logits(hidden)
        return pack_outputs(ops.cast(logits, "float32") + self.output_bias, *scores)
