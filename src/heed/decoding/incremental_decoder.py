"""Decoding one token at a time, from the last tokens to scores for the next ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from heed.ops.backends import current

_IMPOSSIBLE = -1e30


def write(sequences: Any, index: Any, tokens: Any) -> Any:
    """`sequences` (..., L) with `tokens` (...) written at position `index`."""
    start = ops.stack([0] * (len(sequences.shape) - 1) + [ops.cast(index, "int32")])
    return ops.slice_update(sequences, start, ops.expand_dims(tokens, -1))


def begun(prompt: Any, index: Any, pad: int) -> Any:
    """The first `index` tokens of each prompt (B, L), then padding."""
    return ops.where(ops.arange(prompt.shape[1], dtype="int32") < index, prompt, pad)


def column(x: Any, index: Any) -> Any:
    """Entry `index` () of axis 1 of (B, L, ...), (B, ...)."""
    return ops.take(x, ops.reshape(index, (1,)), axis=1)[:, 0]


class DecodingState(NamedTuple):
    """How far decoding is.

    Attributes:
        index: () int32, how many tokens have been read.
        known: what is known of them, a structure of tensors (rows, ...): the model's state, or without a cache the
            tokens, (rows, length).
        coverage: (rows, S) float32, how much the model looked at each place of the source when it wrote what follows
            the tokens that have been read; of padding 1 more. Nothing where it is not kept.
    """

    index: Any
    known: Any
    coverage: Any = ()


class IncrementalDecoder:
    """Runs a model one token at a time, for the rows of a batch or for the beams of each.

    `start` gives the first tokens and state, `step` the scores and the next state. A state is a
    value that a loop carries, and never changes. What depends on the source alone is worked out
    once and does not travel through the loop; what all rows are given to begin with is read at once.

    Args:
        model: What decodes, `Decodable`.
        source: What it decodes, of `batch_size` rows, or None.
        batch_size: B, an int or an integer tensor ().
        length: Number of tokens to decode.
        beams: Number of rows for each source. Row b * beams + k is beam k of source b.
        use_cache: Whether to keep what the model keeps. Else the tokens are read again in every step.
        covers: Whether to keep the coverage, which an `Aligning` model can tell.
    """

    def __init__(
        self,
        model: Any,
        source: Any,
        batch_size: Any,
        length: int,
        beams: int = 1,
        use_cache: bool = True,
        covers: bool = False,
    ) -> None:
        self.config, self.length = model.config, length
        self.batch_size, self.rows = batch_size, batch_size * beams
        self._model, self._use_cache = model, use_cache
        self._memory = model.encode_source(source)
        self._beams, self._covers = beams, covers
        self._uncovered = model.make_coverage(self._memory) if covers else ()
        if not use_cache:
            self._memory = self.of_beams(self._memory)
        # Padding and the start never follow a token: with them a decoded sequence would not be one.
        self._forbidden = np.zeros(self.config.target_vocabulary_size, "float32")
        self._forbidden[[self.config.pad_id, self.config.start_id]] = _IMPOSSIBLE

    def start(self, prompt: Any = None) -> tuple[Any, DecodingState]:
        """The first tokens that are not read yet, (rows,), and the state before they are.

        Args:
            prompt: (B, length) int32, what each row begins with, then padding; or None.

        Returns:
            The start token of each row, and the state of nothing read. Of prompts that all have some tokens (the end
            not among them): the last of these, and the state of all before it.
        """
        config = self.config
        # Compiled for fixed sizes, prompts are read token by token.
        if prompt is None or not current().has_dynamic_shapes():
            tokens = ops.full((self.rows,), config.start_id, dtype="int32")
            nothing = self._nothing(self.rows), self.of_beams(self._uncovered)
            return tokens, DecodingState(ops.zeros((), dtype="int32"), *nothing)
        going = ops.logical_and(prompt != config.pad_id, prompt != config.end_id)
        given = ops.sum(ops.cumprod(ops.cast(going, "int32"), axis=1), axis=1)
        shared = ops.minimum(ops.min(given), self.length)
        start = ops.full((self.batch_size, 1), config.start_id, dtype="int32")
        tokens = ops.concatenate([start, prompt], axis=1)

        def read() -> Any:
            known, coverage = tokens[:, : self.length], self._uncovered
            if self._use_cache:
                nothing = self._nothing(self.batch_size), coverage
                _, known, coverage = self._read(tokens[:, :shared], 0, *nothing)
            return self.of_beams((known, coverage))

        nothing = self._nothing(self.rows), self.of_beams(self._uncovered)
        state = ops.cond(shared > 0, read, lambda: nothing)
        return self.of_beams(column(tokens, shared)), DecodingState(shared, *state)

    def step(self, state: DecodingState, tokens: Any) -> tuple[Any, DecodingState]:
        """Reads a token of each row.

        Args:
            state: What `start`, `select` or the step before returned.
            tokens: (rows,) integers.

        Returns:
            Scores of the tokens that may follow, (rows, vocabulary) float32, and the new state.
        """
        index, known, coverage = state
        if self._use_cache:
            tokens = ops.expand_dims(tokens, 1)
            logits, known, coverage = self._read(tokens, index, known, coverage)
        else:
            known = write(known, index, tokens)
            logits, coverage = self._read_all(known, index, coverage)
        return logits + self._forbidden, DecodingState(index + 1, known, coverage)

    def _read(self, tokens: Any, index: Any, known: Any, coverage: Any) -> tuple[Any, Any, Any]:
        """Reads tokens (rows, T) after `index` others: scores for the next, the new state and coverage."""
        if not self._covers:
            return *self._model.decode_step(tokens, index, known, self._memory), coverage
        logits, known, alignment = self._model.decode_step(
            tokens, index, known, self._memory, return_alignment=True
        )
        return logits, known, _sum_of(coverage, alignment)

    def _read_all(self, tokens: Any, index: Any, coverage: Any) -> tuple[Any, Any]:
        """Scores for the token that follows the one at `index`, with nothing kept, and the coverage."""
        if not self._covers:
            return column(self._model.decode_all(tokens, self._memory), index), coverage
        logits, alignment = self._model.decode_all(tokens, self._memory, return_alignment=True)
        there = ops.expand_dims(ops.arange(self.length, dtype="int32") <= index, 1)
        uncovered = self.of_beams(self._uncovered)
        return column(logits, index), _sum_of(uncovered, ops.where(there, alignment, 0.0))

    def _nothing(self, rows: Any) -> Any:
        """What is known of no tokens."""
        if self._use_cache:
            return self._model.make_state(rows, self.length, self._memory)
        return ops.full((rows, self.length), self.config.pad_id, dtype="int32")

    def of_beams(self, structure: Any) -> Any:
        """From tensors (B, ...) to (rows, ...): each row as often as there are beams."""
        if self._beams == 1:
            return structure
        return keras.tree.map_structure(lambda x: ops.repeat(x, self._beams, axis=0), structure)

    def select(self, state: DecodingState, rows: Any) -> DecodingState:
        """The state of other rows, (rows,) integers: what was in row rows[r] comes to row r."""
        kept = (state.known, state.coverage)
        chosen = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), kept)
        return DecodingState(state.index, *chosen)


def _sum_of(coverage: Any, alignment: Any) -> Any:
    """The coverage (rows, S) after tokens with an alignment (rows, T, S); its shape stays as well known as it was."""
    return ops.reshape(coverage + ops.sum(alignment, axis=1), ops.shape(coverage))
