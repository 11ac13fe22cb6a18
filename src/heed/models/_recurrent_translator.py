"""The recurrent translator: LSTM or GRU encoder and decoder, with attention."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
from keras import ops

from heed.config import COUNT, COUNT_OR_NONE, FLAG, RATE, REQUIRED, one_of, option
from heed.decoding.streaming import stream
from heed.layers import (
    AdditiveAttention,
    LocationAwareAttention,
    LuongAttention,
    TokenEmbedding,
)
from heed.layers.attend import pack_outputs
from heed.layers.dropout import Dropout
from heed.layers.flat_dense import FlatDense
from heed.models._model import (
    ConfiguredModel,
    check_call_tokens,
    check_token_source,
    check_translation,
    make_output,
    score_tokens,
)
from heed.models.config import SpecialTokens

ATTENTIONS = ("additive", "dot", "general", "scaled", "location", "none")


@dataclasses.dataclass(frozen=True)
class RecurrentTranslatorConfig(SpecialTokens):
    """The options of a recurrent translator.

    Args:
        source_vocabulary_size: Number of source tokens, a positive integer.
        target_vocabulary_size: Number of target tokens, a positive integer.
        width: Width D of embeddings and states, an even positive integer: each direction of the encoder has half of it.
            Default 128.
        cell: "lstm" (default) or "gru", in encoder and decoder.
        encoder_layers: Number of layers of the encoder. Default 1.
        decoder_layers: Number of layers of the decoder. Default 1.
        attention: "additive" (Bahdanau; default) or "location" (the same with the previous weights), whose context
            enters the decoder's cells; "dot", "general" or "scaled" (Luong), whose query is the new state; or "none":
            the decoder starts from the encoder's last states and reads nothing else of the source.
        attention_units: Number U of tanh units of "additive" and "location"; None (default) means D.
        location_filters: For "location": features of the previous weights, a positive integer. Default 10.
        location_kernel_size: For "location": positions that one feature sees. Default 31.
        dropout: Rate in [0, 1) for embeddings, the output of each encoder layer and the input of the output layer.
            Default 0.
        tie_embeddings: Whether the output layer is the target embedding's table. Default True.
        pad_id: Token id of padding, ignored in the source. Default 0.
        start_id: First token id of a target. Default 1.
        end_id: Last token id of a target. Default 2.

    Raises:
        ValueError: If a value is out of range or inconsistent with others; the message names it.

    Example:
        >>> RecurrentTranslatorConfig(20, 30, cell="gru", attention="general").attends_inside
        False
        >>> RecurrentTranslatorConfig(20, 30, width=7)
        Traceback (most recent call last):
        ...
        ValueError: `width` must be even. Received: width=7
    """

    source_vocabulary_size: int = option(REQUIRED, COUNT)
    target_vocabulary_size: int = option(REQUIRED, COUNT)
    _: dataclasses.KW_ONLY
    width: int = option(128, COUNT)
    cell: str = option("lstm", one_of(("lstm", "gru")))
    encoder_layers: int = option(1, COUNT)
    decoder_layers: int = option(1, COUNT)
    attention: str = option("additive", one_of(ATTENTIONS))
    attention_units: int | None = option(None, COUNT_OR_NONE)
    location_filters: int = option(10, COUNT)
    location_kernel_size: int = option(31, COUNT)
    dropout: float = option(0.0, RATE)
    tie_embeddings: bool = option(True, FLAG)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.width % 2 == 0, "be even", "width")
        self._check_tokens("target_vocabulary_size")

    @property
    def attends_inside(self) -> bool:
        """Whether attention is part of the decoder's recurrence."""
        return self.attention in ("additive", "location")

    @property
    def longest_target(self) -> None:
        """The largest number of tokens of a target: there is no limit."""
        return None


_LAYERS = {"lstm": keras.layers.LSTM, "gru": keras.layers.GRU}


@keras.saving.register_keras_serializable(package="heed")
class RecurrentEncoder(keras.layers.Layer):
    """Encodes token ids as one state for each, with context from both sides.

    A call takes (B, S) integers, of which those equal to `config.pad_id` change nothing, and returns the states (B, S,
    D), half of each from either direction; the mask (B, S), True = a token; and the concatenated last states of all
    layers and directions: (B, layers D), or (B, layers 2 D) for an LSTM.
    """

    def __init__(self, config: RecurrentTranslatorConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config, policy = config, self.dtype_policy
        # Padding is masked explicitly, by `pad_id`, as in the other models.
        self.tokens = TokenEmbedding(
            config.source_vocabulary_size,
            config.width,
            mask_zero=False,
            dtype=policy,
            name="tokens",
        )
        self.blocks = [self._make_block(number) for number in range(config.encoder_layers)]
        self.drop = Dropout(config.dropout, dtype=policy, name="dropout")

    def _make_block(self, number: int) -> keras.layers.Layer:
        one_side = _LAYERS[self.config.cell](
            self.config.width // 2,
            return_sequences=True,
            return_state=True,
            name=self.config.cell,
            dtype=self.dtype_policy,
        )
        return keras.layers.Bidirectional(one_side, dtype=self.dtype_policy, name=f"layer_{number}")

    def build(self, input_shape: Any = None) -> None:
        self.tokens.build((None, None))
        for block in self.blocks:
            block.build((None, None, self.config.width))

    def call(self, source: Any, training: bool | None = None) -> tuple[Any, Any, Any]:
        source = check_call_tokens("source", source, self.config.source_vocabulary_size, "(B, S)")
        mask = ops.not_equal(source, self.config.pad_id)
        x, last = self.drop(self.tokens(source), training=training), []
        for block in self.blocks:
            x, *states = block(x, mask=mask, training=training)
            x = self.drop(x, training=training)
            last += states
        return x, mask, ops.concatenate(last, axis=-1)


_CELLS = {"lstm": keras.layers.LSTMCell, "gru": keras.layers.GRUCell}
_STATES = {"lstm": 2, "gru": 1}  # of a cell; the first one is its output


@keras.saving.register_keras_serializable(package="heed")
class RecurrentDecoder(keras.layers.Layer):
    """Scores the token that follows each token, given the memory of a source.

    Attention is inside the recurrence ("additive", "location": the state s_{t-1} is the query, and the cells read the
    context with token t) or after it ("dot", "general", "scaled": the states s_t of all steps are the queries of one
    call). The output layer reads `tanh(W [s_t; context_t] + b)`.

    The state before a token is a dictionary: "cells", for each layer the list of its states (rows, D); and with
    attention inside the recurrence "context" (rows, D) and, for "location", "weights" (rows, S).

    A call takes a target (B, T) and the memory, from `remember`. It returns logits (B, T, target_vocabulary_size),
    float32; with `return_attention_scores=True` the pair of them and the weights (B, T, S).
    """

    def __init__(self, config: RecurrentTranslatorConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config, policy, D = config, self.dtype_policy, config.width
        self.tokens = TokenEmbedding(
            config.target_vocabulary_size, D, mask_zero=False, dtype=policy, name="tokens"
        )
        count = config.decoder_layers
        self.cells = [_CELLS[config.cell](D, dtype=policy, name=f"cell_{n}") for n in range(count)]
        self.bridge = FlatDense(
            count * _STATES[config.cell] * D, activation="tanh", dtype=policy, name="bridge"
        )
        self.attention: Any = self._make_attention()
        self.readout = FlatDense(D, activation="tanh", dtype=policy, name="readout")
        self.output_layer = make_output(config, config.target_vocabulary_size, policy)
        self.drop = Dropout(config.dropout, dtype=policy, name="dropout")

    def _make_attention(self) -> Any:
        config = self.config
        options = {"dtype": self.dtype_policy, "name": "attention"}
        units = config.attention_units or config.width
        if config.attention == "none":
            return None
        if config.attention == "additive":
            return AdditiveAttention(units, **options)
        if config.attention == "location":
            return LocationAwareAttention(
                units, config.location_filters, config.location_kernel_size, **options
            )
        return LuongAttention(config.attention, **options)

    def build(self, input_shape: Any = None) -> None:
        config, D = self.config, self.config.width
        self.tokens.build((None, None))
        attends = self.attention is not None
        for number, cell in enumerate(self.cells):
            cell.build((None, D + (D if number == 0 and config.attends_inside else 0)))
        self.bridge.build((None, config.encoder_layers * _STATES[config.cell] * D))
        if attends:
            self.attention.build((None, D), (None, None, D))
        self.readout.build((None, None, 2 * D if attends else D))
        if self.output_layer is not None:
            self.output_layer.build((None, None, D))

    def remember(self, encoded: Any, mask: Any, last: Any) -> dict[str, Any]:
        """Return the memory of a source, from the outputs of the encoder; it is the same for all target tokens.

        That is "start", the states of the cells before the first token; and with attention "mask" (B, S) and "cache",
        the projected keys and values (B, S, .).
        """
        names = [_STATES[self.config.cell]] * self.config.decoder_layers
        states = iter(ops.split(self.bridge(last), sum(names), axis=-1))
        memory: dict[str, Any] = {"start": [[next(states) for _ in range(n)] for n in names]}
        if self.attention is not None:
            memory |= {"mask": mask, "cache": self.attention.project_cache(encoded)}
        return memory

    def first_state(self, memory: dict[str, Any]) -> dict[str, Any]:
        """Return the state before the first token of each source."""
        state = {"cells": memory["start"]}
        if self.config.attends_inside:
            state["context"] = ops.zeros_like(memory["start"][-1][0])
            if self.config.attention == "location":
                state["weights"] = ops.zeros_like(memory["mask"], dtype=self.compute_dtype)
        return state

    def hidden(
        self,
        target: Any,
        state: dict[str, Any],
        memory: dict[str, Any],
        training: bool | None = None,
        with_weights: bool = False,
        several: bool = False,
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Return the input of the output layer (rows, T, D), the weights (rows, T, S) or None, and the new state.

        The state is that before the first of the tokens (rows, T). If `several`, rows may be a multiple of the memory's
        B: several rows for each source.
        """

        def step(state: dict[str, Any], x: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            new = self._step(state, x, memory, several)
            return new, new

        target = check_call_tokens("target", target, self.config.target_vocabulary_size)
        known = tuple(state)
        if with_weights and self.config.attends_inside and "weights" not in state:
            # Keras' scan returns for each step only what it carries.
            shape = (ops.shape(target)[0], ops.shape(memory["mask"])[1])
            state = {**state, "weights": ops.zeros(shape, dtype=self.compute_dtype)}
        x = self.drop(self.tokens(target), training=training)
        if x.shape[1] == 1:
            state, _ = step(state, x[:, 0])
            states = keras.tree.map_structure(lambda one: ops.expand_dims(one, 1), state)
        else:
            state, states = ops.scan(step, state, ops.swapaxes(x, 0, 1))
            states = keras.tree.map_structure(lambda all_: ops.swapaxes(all_, 0, 1), states)
        read, weights = states["cells"][-1][0], states.get("weights")
        if self.config.attends_inside:
            read = ops.concatenate([read, states["context"]], axis=-1)
        elif self.attention is not None:
            context, weights = self._attend(read, memory, with_weights, True)
            read = ops.concatenate([read, context], axis=-1)
        state = {name: state[name] for name in known}
        return self.drop(self.readout(read), training=training), weights, state

    def logits(self, hidden: Any) -> Any:
        """Return scores of each token, (rows, T, D) to (rows, T, target_vocabulary_size), float32."""
        return score_tokens(self.output_layer, self.tokens, hidden)

    def call(
        self,
        target: Any,
        memory: dict[str, Any],
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        if return_attention_scores and self.attention is None:
            raise ValueError(
                "`return_attention_scores` needs attention. "
                f"Received: config.attention={self.config.attention!r}"
            )
        state = self.first_state(memory)
        hidden, weights, _ = self.hidden(target, state, memory, training, return_attention_scores)
        return pack_outputs(self.logits(hidden), weights if return_attention_scores else None)

    def _step(self, state: dict[str, Any], x: Any, memory: dict[str, Any], several: bool) -> Any:
        """Return the state after one token, (rows, D)."""
        new: dict[str, Any] = {"cells": []}
        if self.config.attends_inside:
            weights = state.get("weights")
            query = state["cells"][-1][0]
            if self.config.attention == "location":
                new["context"], new["weights"] = self._attend_by_location(
                    query, weights, memory, several
                )
            else:
                with_weights = weights is not None
                new["context"], weights = self._attend(query, memory, with_weights, several)
                new |= {"weights": weights} if with_weights else {}
            x = ops.concatenate([x, new["context"]], axis=-1)
        for cell, own in zip(self.cells, state["cells"], strict=True):
            x, own = cell(x, own)
            new["cells"].append(list(own))
        return new

    def _attend(
        self, query: Any, memory: dict[str, Any], with_weights: bool, several: bool
    ) -> tuple[Any, Any]:
        """Return context and weights (None unless requested) of states (rows, D) or (rows, T, D)."""
        leading = ops.shape(query)[:-1]
        if several:
            # Rows r b .. r b + r - 1 read source b: their states become one sequence of queries.
            query = ops.reshape(query, (ops.shape(memory["mask"])[0], -1, self.config.width))
        context, *weights, _ = self.attention(
            query,
            None,
            value_mask=memory["mask"],
            cache=memory["cache"],
            return_attention_scores=with_weights,
        )
        found = [context, *weights]
        if several:
            found = [ops.reshape(x, (*leading, ops.shape(x)[-1])) for x in found]
        return found[0], found[1] if with_weights else None

    def _attend_by_location(
        self, query: Any, weights: Any, memory: dict[str, Any], several: bool
    ) -> tuple[Any, Any]:
        """Return context and weights of states (rows, D), given the weights (rows, S) of the states before."""
        source = {name: memory[name] for name in ("mask", "cache")}
        if several:
            # The previous weights are part of the keys, so each row has its own.
            source = repeated(source, ops.shape(query)[0])
        context, weights, _ = self.attention(
            query,
            None,
            previous_weights=weights,
            value_mask=source["mask"],
            cache=source["cache"],
        )
        return context, weights


def repeated(tensors: Any, rows: Any) -> Any:
    """Repeat each of B items of a structure of tensors (B, ...), to `rows`, a multiple of B."""
    return keras.tree.map_structure(
        lambda x: ops.repeat(x, rows // ops.shape(x)[0], axis=0), tensors
    )


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
