"""The decoder of a recurrent translator: its cells, and their attention to a source."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from heed.layers import (
    AdditiveAttention,
    LocationAwareAttention,
    LuongAttention,
    TokenEmbedding,
)
from heed.layers.attend import pack_outputs
from heed.layers.dropout import Dropout
from heed.layers.flat_dense import FlatDense
from heed.models._model import check_call_tokens
from heed.models._recurrent_translator_config import RecurrentTranslatorConfig

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

    Args:
        config: Sizes and choices.
        **kwargs: `name`, `dtype`, as for every Keras layer.

    Call arguments:
        target: (B, T) integers.
        memory: From `remember`.
        return_attention_scores: Whether to return the alignment too.
        training: Whether dropout is on.

    Returns:
        Logits (B, T, target_vocabulary_size), float32; with `return_attention_scores=True` the pair of them and the
        weights (B, T, S).
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
        self.output_layer: Any = None
        if not config.tie_embeddings:
            self.output_layer = FlatDense(
                config.target_vocabulary_size, dtype=policy, name="output"
            )
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
        """Return the memory of a source, which is the same for all target tokens.

        Args:
            encoded, mask, last: The outputs of the encoder.

        Returns:
            "start", the states of the cells before the first token; and with attention "mask" (B, S) and "cache", the
            projected keys and values (B, S, .).
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

        Args:
            target: (rows, T) integers.
            state: Before the first of them.
            memory: From `remember`, of B sources.
            training: Whether dropout is on.
            with_weights: Whether to return the weights.
            several: Whether rows may be a multiple of B: several rows for each source.
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
        scores = self.tokens.logits if self.output_layer is None else self.output_layer
        return ops.cast(scores(hidden), "float32")

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
