"""A language model, which scores the token that follows each token."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import keras

from heed.config import with_default
from heed.decoding.streaming import stream
from heed.models._decoder import TransformerDecoder
from heed.models._model import ConfiguredModel, check_call_tokens
from heed.models.config import OneStackConfig, TokensConfig, TransformerConfig
from heed.ops.checks import check_flag
from heed.ops.dispatch import split_across_workers, splits_sequences


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(OneStackConfig):
    """Everything that defines a language model, checked when it is made.

    Args:
        vocabulary_size: Number of tokens, a positive integer.
        layers: Number of layers. Default 2.
        position: As in `TransformerConfig`. Default "rotary".
        **others: The fields of `TransformerConfig` that are not of two vocabularies or stacks.

    Raises:
        ValueError: If a value is out of range or inconsistent with others; the message names it.

    Example:
        >>> config = LanguageModelConfig(vocabulary_size=260, num_key_value_heads=1, sliding_window=64)
        >>> config.layers, config.position
        (2, 'rotary')
    """

    position: str = with_default(TokensConfig, "position", "rotary")
    logit_soft_cap: float | None = with_default(TransformerConfig, "logit_soft_cap", None)


@keras.saving.register_keras_serializable(package="heed")
class LanguageModel(ConfiguredModel):
    """A decoder without an encoder: scores `p(token t + 1 | tokens 0 .. t)`.

    Sequences begin with `config.start_id`, and the label of each token is the next one. Padding is at the end of a row,
    where no token sees it; give it no weight in the loss (`ignore_class=config.pad_id` of Keras' crossentropy).

    `generate(model, prompt=tokens, max_length=...)` continues prompts.

    Args:
        config: Sizes and choices.
        sequence_parallel: Whether a call in `strategy.run` of a `tf.distribute` strategy is over sequences split across
            its workers, as `heed.distributed.split_sequence` does: each passes its part and gets the logits of its
            part. Outside of a strategy it changes nothing. Positions must be rotary, sinusoidal or ALiBi.
        **kwargs: `name`, `dtype`, as for every Keras model.

    Call arguments:
        tokens: (B, T) integers. Token t sees the tokens up to t.
        return_attention_scores: Whether to return the attention weights too.
        training: Whether dropout is on.

    Returns:
        Logits (B, T, vocabulary_size), float32; with `return_attention_scores=True` the pair of them and a list with
        (B, N, T, T) for each layer.

    Source:
        Radford et al. 2019 (GPT-2). Rotary positions: Su et al. 2021.

    Example:
        >>> import numpy as np
        >>> from heed.models import LanguageModel, LanguageModelConfig, generate
        >>> config = LanguageModelConfig(30, width=8, num_heads=2, feed_forward_width=16)
        >>> model = LanguageModel(config)
        >>> tuple(model(np.array([[1, 3, 4]])).shape)
        (1, 3, 30)
        >>> tokens = generate(model, prompt=np.array([[3, 4]]), max_length=6)
        >>> np.asarray(tokens)[0, :2].tolist()
        [3, 4]
    """

    config_class = LanguageModelConfig

    def __init__(
        self, config: LanguageModelConfig, sequence_parallel: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(config, **kwargs)
        self.sequence_parallel = check_flag("sequence_parallel", sequence_parallel)
        if sequence_parallel and config.position in ("learned", "relative"):
            raise ValueError(
                "`sequence_parallel` needs positions that are rotary, sinusoidal or ALiBi. "
                f"Received: sequence_parallel=True, position={config.position!r}"
            )
        stack = config.of_transformer()
        self.decoder = TransformerDecoder(
            stack, cross_attention=False, dtype=self.dtype_policy, name="decoder"
        )

    def build(self, input_shape: Any = None) -> None:
        self.decoder.build()

    def call(
        self, tokens: Any, return_attention_scores: bool = False, training: bool | None = None
    ) -> Any:
        tokens = check_call_tokens("tokens", tokens, self.config.vocabulary_size)
        with split_across_workers() if self.sequence_parallel else contextlib.nullcontext():
            if return_attention_scores and splits_sequences():
                raise ValueError(
                    "`return_attention_scores` must be False where the sequence is split across workers. "
                    f"Received: return_attention_scores={return_attention_scores}"
                )
            result = self.decoder(
                tokens, return_attention_scores=return_attention_scores, training=training
            )
        if not return_attention_scores:
            return result
        logits, scores = result
        return logits, scores["decoder"]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "sequence_parallel": self.sequence_parallel}

    stream = stream

    # The protocol of `generate`, see `Decodable`.
    def check_source(self, source: Any) -> None:
        """Check that there is no source."""
        if source is not None:
            raise ValueError(
                "`source` must be None for a language model, which goes on where `prompt` ends. "
                f"Received: source={source!r}"
            )

    def encode_source(self, source: Any) -> tuple[()]:
        """Return nothing."""
        return ()

    def make_state(self, rows: Any, length: int, memory: Any = ()) -> Any:
        """Return empty caches of the self-attention."""
        return [cache["self"] for cache in self.decoder.make_caches(rows, length)]

    def decode_step(self, tokens: Any, index: Any, state: Any, memory: Any = ()) -> tuple[Any, Any]:
        """Read tokens, see `Decodable`."""
        return self.decoder.next_logits(tokens, index, state)

    def decode_all(self, tokens: Any, memory: Any = ()) -> Any:
        """Return scores of the token after each, see `Decodable`."""
        return self.decoder(tokens, training=False)
