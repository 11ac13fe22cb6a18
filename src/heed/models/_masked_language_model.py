"""A masked language model, its config, and the base of all models around one encoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from heed.config import COUNT, INDEX, option, with_default
from heed.layers.attend import pack_outputs
from heed.layers.flat_dense import FlatDense
from heed.layers.layer_config import LayerConfig
from heed.layers.normalization import make_normalization
from heed.models._encoder import TransformerEncoder
from heed.models._model import ConfiguredModel, check_call_tokens, make_output, score_tokens
from heed.models.config import OneStackConfig, SpecialTokens, TokensConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLanguageModelConfig(OneStackConfig):
    """The options of a masked language model and of the classifiers on its encoder.

    `start_id` is BERT's [CLS], `end_id` its [SEP], `mask_id` its [MASK].

    Args:
        vocabulary_size: Number of tokens, the four special ones among them, an integer from 5.
        layers: Number of layers. Default 2.
        mask_id: Token id that replaces a hidden token. Default 3.
        num_segments: Number of segments of a row, such as 2 for a question and a text; each adds a learned vector to
            its tokens (BERT's token types). Default 1, which adds none.
        activation, position: As in `TransformerConfig`. Default "gelu" and "learned", as in BERT.
        **others: The fields of `TransformerConfig` that are not of two vocabularies or stacks, see
            `LanguageModelConfig`.

    Raises:
        ValueError: If a value is out of range or inconsistent with others; the message names it.

    Source:
        Devlin et al. 2019 (L = layers, H = width, A = num_heads), whose models are post-norm: `norm_first=False`.

    Example:
        >>> config = MaskedLanguageModelConfig(vocabulary_size=260, num_segments=2)
        >>> config.mask_id, config.position
        (3, 'learned')
        >>> config.special_ids
        (0, 1, 2, 3)
    """

    mask_id: int = option(3, INDEX)
    num_segments: int = option(1, COUNT)
    activation: str = with_default(LayerConfig, "activation", "gelu")
    position: str = with_default(TokensConfig, "position", "learned")

    _special_tokens = (*SpecialTokens._special_tokens, "mask_id")

    def __post_init__(self) -> None:
        super().__post_init__()
        ordinary = self.vocabulary_size > len(self._special_tokens)
        self._require(ordinary, "leave room for an ordinary token", "vocabulary_size")

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of the special tokens, in ascending order; they are never masked or inserted."""
        return tuple(sorted(getattr(self, name) for name in self._special_tokens))


class EncoderModel(ConfiguredModel):
    """An encoder, which other models may share, and a head that reads its vectors."""

    config_class = MaskedLanguageModelConfig

    def __init__(
        self,
        config: MaskedLanguageModelConfig,
        encoder: TransformerEncoder | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, **kwargs)
        stack, num_segments = config.of_transformer(), config.num_segments
        if encoder is None:
            encoder = TransformerEncoder(
                stack, num_segments=num_segments, dtype=self.dtype_policy, name="encoder"
            )
        elif not isinstance(encoder, TransformerEncoder):
            raise TypeError(
                f"`encoder` must be a TransformerEncoder or None. Received: encoder={encoder!r}"
            )
        # A saved model stores only the config, and loading makes a new encoder from it.
        elif (encoder.config, encoder.num_segments) != (stack, num_segments):
            raise ValueError(
                "`encoder` must be one that was made from `config`. Received: "
                f"encoder.config={encoder.config}, encoder.num_segments={encoder.num_segments}, config={config}"
            )
        self.encoder = encoder

    def build(self, input_shape: Any = None) -> None:
        if not self.encoder.built:
            self.encoder.build()

    def encode(
        self, inputs: Any, return_attention_scores: bool = False, training: bool | None = None
    ) -> tuple[Any, ...]:
        """Return the encoder's vectors (B, T, D), and with `return_attention_scores=True` its scores."""
        tokens, segments = split_inputs(inputs)
        tokens = check_call_tokens("tokens", tokens, self.config.vocabulary_size)
        encoded = self.encoder(
            tokens,
            return_attention_scores=return_attention_scores,
            training=training,
            segments=segments,
        )
        return encoded if return_attention_scores else (encoded,)

    def real_tokens(self, inputs: Any) -> Any:
        """Return (B, T) booleans, True where a token is not padding."""
        tokens, _ = split_inputs(inputs)
        return ops.not_equal(tokens, self.config.pad_id)


def split_inputs(inputs: Any) -> tuple[Any, Any]:
    """Split a model's inputs into tokens (B, T) and segments (B, T) or None."""
    if not isinstance(inputs, Mapping):
        return inputs, None
    if not {"tokens"} <= set(inputs) <= {"tokens", "segments"}:
        raise ValueError(
            '`inputs` must be tokens or a dict with "tokens" and, if the model has them, "segments". '
            f"Received: {sorted(inputs)}"
        )
    return inputs["tokens"], inputs.get("segments")


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
        self.head_norm = make_normalization(config, dtype=policy, name="head_norm")
        self.output_layer = make_output(config, config.vocabulary_size, policy, use_bias=False)

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
        logits = score_tokens(self.output_layer, self.encoder.embedding.tokens, hidden)
        return pack_outputs(logits + self.output_bias, *scores)
