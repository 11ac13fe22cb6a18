"""One decoding step of a Transformer: from the last token to scores for the next one."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops

from heed.models.transformer import Transformer

__all__ = ["Stepper", "write"]

_IMPOSSIBLE = -1e30


def write(sequences: Any, index: Any, tokens: Any) -> Any:
    """`sequences` (..., L) with `tokens` (...) written at position `index`."""
    start = ops.stack([0] * (len(sequences.shape) - 1) + [ops.cast(index, "int32")])
    return ops.slice_update(sequences, start, ops.expand_dims(tokens, -1))


class Stepper:
    """Runs the decoder one token at a time, for the rows of a batch or for the beams of each.

    The state that a loop carries is, with a cache, the projected keys and values of the
    self-attention, one entry for each layer; without one, the tokens so far, which the decoder
    then reads again in every step. What depends on the source alone is worked out once and does
    not travel through the loop.

    Args:
        model: The encoder-decoder.
        source: (B, S) integers.
        length: Number of tokens to decode.
        beams: Number of rows for each source. Row b * beams + k is beam k of source b.
        use_cache: Whether to keep keys and values.
    """

    def __init__(
        self, model: Transformer, source: Any, length: int, beams: int = 1, use_cache: bool = True
    ) -> None:
        self.model = model
        self.config = model.config
        self.length = length
        self.batch_size = ops.shape(source)[0]
        self.rows = self.batch_size * beams
        self.use_cache = use_cache
        self.source_mask = model.source_mask(source)
        self.encoded = model.encode(source, training=False)
        self._cross: list[Any] = []
        if not use_cache and beams > 1:
            self.encoded = ops.repeat(self.encoded, beams, axis=0)
            self.source_mask = ops.repeat(self.source_mask, beams, axis=0)
        # Padding and the start never follow a token: with them a decoded sequence would not be one.
        forbidden = np.zeros(self.config.target_vocabulary_size, "float32")
        forbidden[[self.config.pad_id, self.config.start_id]] = _IMPOSSIBLE
        self._forbidden = forbidden

    def first_tokens(self) -> Any:
        """The start of each row, (rows,)."""
        return ops.full((self.rows,), self.config.start_id, dtype="int32")

    def first_state(self) -> Any:
        """The state before the first step."""
        if not self.use_cache:
            return ops.full((self.rows, self.length), self.config.pad_id, dtype="int32")
        caches = self.model.make_caches(self.rows, self.length, self.encoded)
        self._cross = [cache["cross"] for cache in caches]
        return [cache["self"] for cache in caches]

    def step(self, state: Any, tokens: Any, index: Any) -> tuple[Any, Any]:
        """Scores of the tokens that may follow.

        Args:
            state: What `first_state` or the step before returned.
            tokens: (rows,) integers, the tokens at position `index` of the decoder's input.
            index: Integer tensor ().

        Returns:
            Logits (rows, vocabulary), float32, and the new state.
        """
        decoder = self.model.decoder
        if self.use_cache:
            caches = [
                {"self": own, "cross": cross} for own, cross in zip(state, self._cross, strict=True)
            ]
            hidden, _, new = decoder.hidden(
                ops.expand_dims(tokens, 1),
                source_mask=self.source_mask,
                caches=caches,
                cache_index=index,
                training=False,
            )
            state = [cache["self"] for cache in new or ()]
        else:
            state = write(state, index, tokens)
            hidden, _, _ = decoder.hidden(
                state, self.encoded, source_mask=self.source_mask, training=False
            )
            hidden = ops.take(hidden, ops.reshape(index, (1,)), axis=1)
        logits = ops.squeeze(decoder.logits(hidden), axis=1)
        return logits + self._forbidden, state

    def select(self, state: Any, rows: Any) -> Any:
        """The state of other rows, (rows,) integers: what was in row rows[r] comes to row r."""
        if not self.use_cache:
            return ops.take(state, rows, axis=0)
        return [{name: ops.take(x, rows, axis=0) for name, x in cache.items()} for cache in state]
