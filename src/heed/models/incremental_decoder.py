"""Decoding one token at a time, from the last tokens to scores for the next ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from heed.models.transformer import Transformer

_IMPOSSIBLE = -1e30


def write(sequences: Any, index: Any, tokens: Any) -> Any:
    """`sequences` (..., L) with `tokens` (...) written at position `index`."""
    start = ops.stack([0] * (len(sequences.shape) - 1) + [ops.cast(index, "int32")])
    return ops.slice_update(sequences, start, ops.expand_dims(tokens, -1))


class DecodingState(NamedTuple):
    """How far decoding is.

    Attributes:
        index: () int32, how many tokens have been read.
        memory: what is known of them: with a cache the projected keys and values of the
            self-attention, one entry for each layer; without one, the tokens, (rows, length).
    """

    index: Any
    memory: Any


class IncrementalDecoder:
    """Runs a decoder one token at a time, for the rows of a batch or for the beams of each.

    `start` gives the first tokens and state, `step` the scores and the next state. A state is a
    value that a loop carries, and never changes. What depends on the source alone is worked out
    once and does not travel through the loop.

    Args:
        model: The encoder-decoder.
        source: (B, S) integers.
        length: Number of tokens to decode.
        beams: Number of rows for each source. Row b * beams + k is beam k of source b.
        use_cache: Whether to keep keys and values. Else the tokens are read again in every step.
    """

    def __init__(
        self, model: Transformer, source: Any, length: int, beams: int = 1, use_cache: bool = True
    ) -> None:
        self.config, self.length = model.config, length
        self.batch_size = ops.shape(source)[0]
        self.rows = self.batch_size * beams
        self._decoder, self._use_cache = model.decoder, use_cache
        self._source_mask = model.source_mask(source)
        self._encoded = model.encode(source, training=False)
        if use_cache:
            caches = model.make_caches(self.rows, length, self._encoded)
            self._cross = [cache["cross"] for cache in caches]
            self._nothing: Any = [cache["self"] for cache in caches]
        else:
            if beams > 1:
                self._encoded = ops.repeat(self._encoded, beams, axis=0)
                self._source_mask = ops.repeat(self._source_mask, beams, axis=0)
            self._nothing = ops.full((self.rows, length), self.config.pad_id, dtype="int32")
        # Padding and the start never follow a token: with them a decoded sequence would not be one.
        self._forbidden = np.zeros(self.config.target_vocabulary_size, "float32")
        self._forbidden[[self.config.pad_id, self.config.start_id]] = _IMPOSSIBLE

    def start(self) -> tuple[Any, DecodingState]:
        """The start token of each row, (rows,), and the state before it is read."""
        tokens = ops.full((self.rows,), self.config.start_id, dtype="int32")
        return tokens, DecodingState(ops.zeros((), dtype="int32"), self._nothing)

    def step(self, state: DecodingState, tokens: Any) -> tuple[Any, DecodingState]:
        """Reads a token of each row.

        Args:
            state: What `start`, `select` or the step before returned.
            tokens: (rows,) integers.

        Returns:
            Scores of the tokens that may follow, (rows, vocabulary) float32, and the new state.
        """
        index, memory = state
        if self._use_cache:
            caches = [
                {"self": own, "cross": cross}
                for own, cross in zip(memory, self._cross, strict=True)
            ]
            hidden, _, new = self._decoder.hidden(
                ops.expand_dims(tokens, 1),
                source_mask=self._source_mask,
                caches=caches,
                cache_index=index,
                training=False,
            )
            memory = [cache["self"] for cache in new or ()]
        else:
            memory = write(memory, index, tokens)
            hidden, _, _ = self._decoder.hidden(
                memory, self._encoded, source_mask=self._source_mask, training=False
            )
            hidden = ops.take(hidden, ops.reshape(index, (1,)), axis=1)
        logits = ops.squeeze(self._decoder.logits(hidden), axis=1)
        return logits + self._forbidden, DecodingState(index + 1, memory)

    def select(self, state: DecodingState, rows: Any) -> DecodingState:
        """The state of other rows, (rows,) integers: what was in row rows[r] comes to row r."""
        index, memory = state
        chosen = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), memory)
        return DecodingState(index, chosen)
