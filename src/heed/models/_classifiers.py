"""Classifiers of rows, tokens and spans, which fine-tune an encoder."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from heed.layers import DotProductAttention
from heed.layers.attend import pack_outputs
from heed.layers.dropout import Dropout
from heed.layers.flat_dense import FlatDense
from heed.models._encoder import TransformerEncoder
from heed.models._masked_language_model import EncoderModel, MaskedLanguageModelConfig, split_inputs
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


# The score of tokens outside the text: finite, so a row without a text has a finite loss.
_NOWHERE = -1e9


@keras.saving.register_keras_serializable(package="heed")
class SpanClassifier(EncoderModel):
    """Scores each token of a text as the start and the end of the answer to a question.

    `start_t = w_0 x_t + b_0` and `end_t = w_1 x_t + b_1`, where x_t is the encoder's vector of token t. Only the text
    can hold the answer: the ordinary tokens of segment 1 and above, not segment 0, special tokens or padding. A row is
    `start_id`, the question, `end_id` (segment 0), then the text and `end_id` (segment 1).

    Labels are (B, 2) integers, the positions of the answer's first and last token, so one loss trains both scores:
    `SparseCategoricalCrossentropy(from_logits=True)`. `best_spans` finds the answers.

    Args:
        config: The model's options, with two segments or more.
        encoder, **kwargs: As for `SequenceClassifier`.

    Call arguments:
        inputs: `{"tokens": (B, T), "segments": (B, T)}`, both integers.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether dropout is on.

    Returns:
        Logits (B, 2, T), float32, of the start and the end, -1e9 outside the text. With
        `return_attention_scores=True`, (logits, scores): scores is a list of (B, N, T, T), one per layer.

    Raises:
        ValueError: If `config` has one segment, `inputs` has no segments, or `encoder` has another config.
        TypeError: If `config` or `encoder` has the wrong type.

    Source:
        Devlin et al. 2019, section 4.2 (S = w_0, E = w_1).

    Example:
        >>> import numpy as np
        >>> from heed.models import MaskedLanguageModelConfig, SpanClassifier, best_spans
        >>> config = MaskedLanguageModelConfig(30, num_segments=2, width=8, num_heads=2)
        >>> model = SpanClassifier(config)
        >>> inputs = {
        ...     "tokens": np.array([[1, 7, 9, 2, 8, 5, 7, 2, 0]]),
        ...     "segments": np.array([[0, 0, 0, 0, 1, 1, 1, 1, 0]]),
        ... }
        >>> logits = model(inputs)
        >>> tuple(logits.shape)
        (1, 2, 9)
        >>> start, end = np.asarray(best_spans(logits))[0]
        >>> bool(4 <= start <= end <= 6)
        True
    """

    def __init__(
        self,
        config: MaskedLanguageModelConfig,
        encoder: TransformerEncoder | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, encoder, **kwargs)
        if config.num_segments < 2:
            raise ValueError(
                "`config` must have 2 segments or more, for the question and the text. "
                f"Received: num_segments={config.num_segments}"
            )
        self.drop = Dropout(config.dropout, dtype=self.dtype_policy, name="dropout")
        self.output_layer = FlatDense(2, dtype=self.dtype_policy, name="output")

    def build(self, input_shape: Any = None) -> None:
        super().build()
        self.output_layer.build((None, None, self.config.width))

    def call(
        self, inputs: Any, return_attention_scores: bool = False, training: bool | None = None
    ) -> Any:
        tokens, segments = split_inputs(inputs)
        if segments is None:
            raise ValueError(
                '`inputs` must have "segments": 0 for the question, 1 for the text. Received: none'
            )
        encoded, *scores = self.encode(inputs, return_attention_scores, training)
        logits = self.output_layer(self.drop(encoded, training=training))
        logits = ops.transpose(ops.cast(logits, "float32"), (0, 2, 1))
        special = [ops.equal(tokens, one) for one in self.config.special_ids]
        text = ops.logical_and(segments > 0, ops.logical_not(ops.any(ops.stack(special), axis=0)))
        return pack_outputs(ops.where(text[:, None], logits, _NOWHERE), *scores)


def best_spans(logits: Any, max_length: int | None = None) -> Any:
    """Find the best answer of each row: `argmax_{s, e} start_s + end_e` with s <= e < s + max_length.

    Args:
        logits: (B, 2, T) floats, from `SpanClassifier`.
        max_length: Largest number of tokens of an answer, a positive integer. Default: T.

    Returns:
        (B, 2) int32: the positions of the first and the last token of each answer. Ties go to the earliest start, then
        to the earliest end.

    Raises:
        ValueError: If `logits` has another shape, or `max_length` is not a positive integer.

    Numerics:
        Memory grows with T * max_length.

    Source:
        Devlin et al. 2019, section 4.2.

    Example:
        >>> import numpy as np
        >>> from heed.models import best_spans
        >>> start, end = [0.0, 1.0, 3.0, 0.0], [0.0, 4.0, 0.0, 2.0]
        >>> np.asarray(best_spans(np.array([[start, end]]))).tolist()  # 3 + 4 would end before it starts
        [[1, 1]]
    """
    logits = ops.convert_to_tensor(logits)
    if len(logits.shape) != 3 or logits.shape[1] != 2:
        raise ValueError(
            f"`logits` must be of shape (B, 2, T). Received: logits.shape={tuple(logits.shape)}"
        )
    length = ops.shape(logits)[-1]
    most = check_integer("max_length", max_length, least=1, optional=True)
    most = length if most is None else ops.minimum(most, length)
    start, end = logits[:, 0], logits[:, 1]
    # (T, L): the last position of an answer of 1, 2, ... L tokens from each position.
    ends = ops.arange(length)[:, None] + ops.arange(most)[None]
    inside = ends < length
    scores = start[..., None] + ops.take(end, ops.where(inside, ends, 0), axis=-1)
    scores = ops.where(inside, scores, -float("inf"))
    best = ops.argmax(ops.reshape(scores, (ops.shape(scores)[0], -1)), axis=-1)
    first = best // most
    return ops.cast(ops.stack([first, first + best % most], axis=-1), "int32")
