"""Decoding one token at a time, from the last tokens to scores for the next ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from heed.ops.backends import current

_IMPOSSIBLE = -1e30


def write(sequences: Any, index: Any, tokens: Any) -> Any:
    """Return `sequences` (..., L) with `tokens` (...) written at position `index`."""
    start = ops.stack([0] * (len(sequences.shape) - 1) + [ops.cast(index, "int32")])
    return ops.slice_update(sequences, start, ops.expand_dims(tokens, -1))


def first_tokens(prompt: Any, index: Any, pad: int) -> Any:
    """Return the first `index` tokens of each prompt (B, L), then padding."""
    return ops.where(ops.arange(prompt.shape[1], dtype="int32") < index, prompt, pad)


def column(x: Any, index: Any) -> Any:
    """Return entry `index` () of axis 1 of (B, L, ...), (B, ...)."""
    return ops.take(x, ops.reshape(index, (1,)), axis=1)[:, 0]


class DecodingState(NamedTuple):
    """The state of a decoding loop."""

    index: Any  # () int32, the number of tokens read
    # the model's state, a structure of tensors (rows, ...); without a cache the tokens, (rows, length)
    known: Any
    # (rows, S) float32, the sum of the alignments of the steps so far, 1 more for padding; () where it is not tracked
    coverage: Any = ()


class IncrementalDecoder:
    """Runs a model one token at a time, for the rows of a batch or for the beams of each.

    `start` returns the first tokens and state, `step` the scores and the next state. A state is a value that a loop
    carries; it never changes. The memory of the source is computed once and does not travel through the loop. Prompts
    are read at once, up to the length of the shortest.

    Args:
        model: A `Decodable` model.
        memory: From `encode_source` of the model.
        batch_size: B, an int or an integer tensor ().
        length: Number of tokens to decode.
        beams: Number of rows for each source. Row b * beams + k is beam k of source b.
        use_cache: Whether to keep the model's state. Otherwise each step reads all tokens again.
        track_coverage: Whether to sum up alignments, for which the model must be `Aligning`.
    """

    def __init__(
        self,
        model: Any,
        memory: Any,
        batch_size: Any,
        length: int,
        beams: int = 1,
        use_cache: bool = True,
        track_coverage: bool = False,
    ) -> None:
        self.config, self.length = model.config, length
        self.batch_size, self.rows = batch_size, batch_size * beams
        self._model, self._use_cache, self._memory = model, use_cache, memory
        self._beams, self._track_coverage = beams, track_coverage
        self._no_coverage = model.make_coverage(self._memory) if track_coverage else ()
        if not use_cache:
            self._memory = self.of_beams(self._memory)
        # Padding and the start token never follow a token.
        forbidden = np.zeros(self.config.target_vocabulary_size, "float32")
        forbidden[[self.config.pad_id, self.config.start_id]] = _IMPOSSIBLE
        self._forbidden = ops.convert_to_tensor(forbidden)

    def start(self, prompt: Any = None) -> tuple[Any, DecodingState]:
        """Return the first tokens to read, (rows,), and the state before them.

        With prompts (B, length), padded after their tokens, that all have n tokens or more before an end: token n of
        each, and the state after those before it. Otherwise the start token of each row and the empty state.
        """
        config = self.config
        # Compiled for fixed sizes, prompts are read token by token.
        if prompt is None or not current().has_dynamic_shapes():
            tokens = ops.full((self.rows,), config.start_id, dtype="int32")
            empty = self._empty(self.rows), self.of_beams(self._no_coverage)
            return tokens, DecodingState(ops.zeros((), dtype="int32"), *empty)
        going = ops.logical_and(prompt != config.pad_id, prompt != config.end_id)
        given = ops.sum(ops.cumprod(ops.cast(going, "int32"), axis=1), axis=1)
        shared = ops.minimum(ops.min(given), self.length)
        start = ops.full((self.batch_size, 1), config.start_id, dtype="int32")
        tokens = ops.concatenate([start, prompt], axis=1)

        def read() -> Any:
            known, coverage = tokens[:, : self.length], self._no_coverage
            if self._use_cache:
                empty = self._empty(self.batch_size), coverage
                _, known, coverage = self._read(tokens[:, :shared], 0, *empty)
            return self.of_beams((known, coverage))

        empty = self._empty(self.rows), self.of_beams(self._no_coverage)
        state = ops.cond(shared > 0, read, lambda: empty)
        return self.of_beams(column(tokens, shared)), DecodingState(shared, *state)

    def step(self, state: DecodingState, tokens: Any) -> tuple[Any, DecodingState]:
        """Read a token of each row: scores of the next one, (rows, vocabulary) float32, and the new state."""
        index, known, coverage = state
        if self._use_cache:
            tokens = ops.expand_dims(tokens, 1)
            logits, known, coverage = self._read(tokens, index, known, coverage)
        else:
            known = write(known, index, tokens)
            logits, coverage = self._read_all(known, index, coverage)
        return logits + self._forbidden, DecodingState(index + 1, known, coverage)

    def _read(self, tokens: Any, index: Any, known: Any, coverage: Any) -> tuple[Any, Any, Any]:
        """Read tokens (rows, T) after `index` others: scores for the next, the new state and coverage."""
        if not self._track_coverage:
            return *self._model.decode_step(tokens, index, known, self._memory), coverage
        logits, known, alignment = self._model.decode_step(
            tokens, index, known, self._memory, return_alignment=True
        )
        return logits, known, _add(coverage, alignment)

    def _read_all(self, tokens: Any, index: Any, coverage: Any) -> tuple[Any, Any]:
        """Return scores for the token after the one at `index`, without a state, and the coverage."""
        if not self._track_coverage:
            return column(self._model.decode_all(tokens, self._memory), index), coverage
        logits, alignment = self._model.decode_all(tokens, self._memory, return_alignment=True)
        is_read = ops.expand_dims(ops.arange(self.length, dtype="int32") <= index, 1)
        coverage = self.of_beams(self._no_coverage)
        return column(logits, index), _add(coverage, ops.where(is_read, alignment, 0.0))

    def _empty(self, rows: Any) -> Any:
        if self._use_cache:
            return self._model.make_state(rows, self.length, self._memory)
        return ops.full((rows, self.length), self.config.pad_id, dtype="int32")

    def of_beams(self, structure: Any) -> Any:
        """Return tensors (B, ...) to (rows, ...): each row once for each beam."""
        if self._beams == 1:
            return structure
        return keras.tree.map_structure(lambda x: ops.repeat(x, self._beams, axis=0), structure)

    def select(self, state: DecodingState, rows: Any) -> DecodingState:
        """Return the state with row rows[r] in the place of row r; `rows` is (rows,) integers."""
        kept = (state.known, state.coverage)
        chosen = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), kept)
        return DecodingState(state.index, *chosen)


def _add(coverage: Any, alignment: Any) -> Any:
    """Return the coverage (rows, S) plus an alignment (rows, T, S); a loop needs the static shape of the coverage."""
    return ops.reshape(coverage + ops.sum(alignment, axis=1), ops.shape(coverage))
