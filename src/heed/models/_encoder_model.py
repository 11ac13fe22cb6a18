"""The base of models around one encoder: tokens and segments in, one vector for each token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras import ops

from heed.models._encoder import TransformerEncoder
from heed.models._masked_language_model_config import MaskedLanguageModelConfig
from heed.models._model import ConfiguredModel, check_call_tokens


class EncoderModel(ConfiguredModel):
    """An encoder, and a head that reads its vectors.

    Attributes:
        encoder: a `TransformerEncoder`, which other models may share.
    """

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
    """Split a model's inputs into tokens (B, T) and segments (B, T) or None.

    Raises:
        ValueError: if `inputs` is a dict without tokens or with other keys.
    """
    if not isinstance(inputs, Mapping):
        return inputs, None
    if not {"tokens"} <= set(inputs) <= {"tokens", "segments"}:
        raise ValueError(
            '`inputs` must be tokens or a dict with "tokens" and, if the model has them, "segments". '
            f"Received: {sorted(inputs)}"
        )
    return inputs["tokens"], inputs.get("segments")
