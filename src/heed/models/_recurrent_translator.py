"""The recurrent translator: LSTM or GRU encoder and decoder, with attention."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from heed.decoding.streaming import stream
from heed.models._model import ConfiguredModel, check_token_source, check_translation
from heed.models._recurrent_decoder import RecurrentDecoder, repeated
from heed.models._recurrent_encoder import RecurrentEncoder
from heed.models._recurrent_translator_config import RecurrentTranslatorConfig


@keras.saving.register_keras_serializable(package="heed")
class RecurrentTranslator(ConfiguredModel):
    """Scores the next tokens of a target, given a source, by recurrent networks with attention.

        encoder   h_j = [forward_j; backward_j], an LSTM or GRU from each side
        decoder   s_t = cell(s_{t-1}, [y_t; c_t]),  c_t = attention(s_{t-1}, h)     "additive", "location"
                  s_t = cell(s_{t-1}, y_t),         c_t = attention(s_t, h)         "dot", "general", "scaled"
        logits    E tanh(W [s_t; c_t] + b)

    Keys are projected once for each source. With "dot", "general" and "scaled", attention in training is one fused call
    over the whole target.

    Args:
        config: Sizes and choices.
        **kwargs: `name`, `dtype`, as for every Keras model.

    Call arguments:
        inputs: `{"source": (B, S) integers, "target": (B, T) integers}`. The target starts with `config.start_id`; the
            label of token t is token t + 1. Source tokens equal to `config.pad_id`, at the end, are ignored.
        return_attention_scores: Whether to return the alignment too; True or "alignment", as of a `Transformer`.
        training: Whether dropout is on.

    Returns:
        Logits (B, T, target_vocabulary_size), float32. With `return_attention_scores=True` the pair of them and the
        weights (B, T, S): row t is the attention that chose the token after token t.

    Raises:
        ValueError: If `inputs` lacks the source or the target, or a model without attention is asked for scores.

    Source:
        Bahdanau et al. 2015 ("additive"; their s_0 = tanh(W_s h) is the bridge, here from the last states of all layers
        and both sides). Luong et al. 2015 ("dot", "general", and the attentional vector tanh(W_c [c_t; h_t])).
        Chorowski et al. 2015 ("location"). Cho et al. 2014, Sutskever et al. 2014 ("none").

    Example:
        >>> import numpy as np
        >>> from heed.models import RecurrentTranslator, RecurrentTranslatorConfig, generate
        >>> model = RecurrentTranslator(RecurrentTranslatorConfig(20, 30, width=8))
        >>> source, target = np.array([[5, 3, 4, 0]]), np.array([[1, 7]])
        >>> inputs = {"source": source, "target": target}
        >>> logits, alignment = model(inputs, return_attention_scores=True)
        >>> tuple(logits.shape), tuple(alignment.shape)
        ((1, 2, 30), (1, 2, 4))
        >>> tuple(generate(model, source, max_length=6, method="beam").shape)
        (1, 6)
    """

    config_class = RecurrentTranslatorConfig

    def __init__(self, config: RecurrentTranslatorConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        policy = self.dtype_policy
        self.encoder = RecurrentEncoder(config, dtype=policy, name="encoder")
        self.decoder = RecurrentDecoder(config, dtype=policy, name="decoder")

    def build(self, input_shape: Any = None) -> None:
        self.encoder.build()
        self.decoder.build()

    def call(
        self, inputs: Any, training: bool | None = None, return_attention_scores: bool | str = False
    ) -> Any:
        source, target = check_translation(inputs)
        memory = self.encode_source(source, training)
        return self.decoder(
            target,
            memory,
            return_attention_scores=bool(return_attention_scores),
            training=training,
        )

    stream = stream

    # The protocol of `generate`, see `Decodable`.
    def check_source(self, source: Any) -> Any:
        """Return the source as an int32 tensor (B, S)."""
        return check_token_source(source, self.config.source_vocabulary_size)

    def encode_source(self, source: Any, training: bool | None = False) -> dict[str, Any]:
        """Return the first states of the decoder, and the keys, values and mask of the source."""
        return self.decoder.remember(*self.encoder(source, training=training))

    def make_state(self, rows: Any, length: int, memory: Any) -> Any:
        """Return the states before the first token."""
        return repeated(self.decoder.first_state(memory), rows)

    def decode_step(
        self, tokens: Any, index: Any, state: Any, memory: Any, return_alignment: bool = False
    ) -> tuple[Any, ...]:
        """Read tokens, see `Decodable` and `Aligning`."""
        hidden, weights, state = self.decoder.hidden(
            tokens, state, memory, with_weights=return_alignment, several=True
        )
        found = self.decoder.logits(hidden[:, -1:])[:, 0], state
        return (*found, ops.cast(weights, "float32")) if return_alignment else found

    def decode_all(self, tokens: Any, memory: Any, return_alignment: bool = False) -> Any:
        """Return scores of the token after each, see `Decodable` and `Aligning`."""
        found = self.decoder(
            tokens, memory, return_attention_scores=return_alignment, training=False
        )
        return (found[0], ops.cast(found[1], "float32")) if return_alignment else found

    @property
    def aligns(self) -> bool:
        """Whether there is attention, see `Aligning`."""
        return self.decoder.attention is not None

    def make_coverage(self, memory: Any) -> Any:
        """Return the coverage before the first token, see `Aligning`."""
        return 1.0 - ops.cast(memory["mask"], "float32")
