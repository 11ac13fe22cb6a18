"""Greedy and sampled decoding of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from keras import ops

from heed.decoding._incremental_decoder import (
    DecodingState,
    IncrementalDecoder,
    column,
    first_tokens,
    write,
)
from heed.ops.dispatch import select_fused_ops


def greedy(logits: Any, index: Any) -> Any:
    """Return the token with the highest score in any step, (B, vocabulary) to (B,)."""
    return select_fused_ops().argmax(logits)


def draw(
    logits: Any,
    uniform: Any,
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Any:
    """Draw one token a row by inverting the cumulative distribution, (B,) int32.

    `p = softmax(logits / temperature)`, cut to the `top_k` most likely tokens, then to the fewest of them that hold at
    least `top_p` of the mass and to those with at least `min_p` of the likeliest one's, and scaled to sum to 1. None:
    no such cut.

    The only randomness is `uniform`, (B,) floats in [0, 1): a row's draw depends on its own number and scores alone.
    """
    vocabulary = logits.shape[-1]
    if top_k == 1:
        return greedy(logits, None)
    logits = logits / temperature
    tokens = None
    if top_k is not None or top_p is not None:
        count = vocabulary if top_k is None else min(top_k, vocabulary)
        logits, tokens = ops.top_k(logits, count)
    likely = (
        None
        if min_p is None
        else ops.subtract(logits, ops.max(logits, -1, keepdims=True)) >= math.log(min_p)
    )
    mass = ops.softmax(logits, axis=-1)
    if top_p is not None:
        before = ops.cumsum(mass, axis=-1) - mass
        first = ops.arange(mass.shape[-1]) == 0
        mass = ops.where(ops.logical_or(before < top_p, first), mass, 0.0)
    if likely is not None:
        mass = ops.where(likely, mass, 0.0)
    cumulative = ops.cumsum(mass, axis=-1)
    # The threshold lies in (0, total]: whatever the rounding, the first token to reach it has mass.
    threshold = (1.0 - uniform[:, None]) * cumulative[:, -1:]
    choice = ops.sum(ops.cast(cumulative < threshold, "int32"), axis=-1)
    if tokens is not None:
        choice = ops.take_along_axis(tokens, choice[:, None], axis=-1)[:, 0]
    return ops.cast(choice, "int32")  # with 64-bit numbers JAX sums int32 in int64


class RowLoop:
    """The loop that decodes until every row has ended or has `decoder.length` tokens.

    Its variables are the decoder's state, the last tokens (rows,), which rows have ended (rows,), the output
    (rows, length) int32, and the scores (rows,).

    Args:
        decoder: Runs the model, one row for each source or several.
        choose: Logits (rows, vocabulary) and the step () to tokens (rows,).
        prompt: (B, length) int32, the first tokens of the rows of each source, then padding; or None.
        return_scores: Whether to compute scores.
    """

    def __init__(
        self,
        decoder: IncrementalDecoder,
        choose: Callable[[Any, Any], Any],
        prompt: Any = None,
        return_scores: bool = False,
    ) -> None:
        self._decoder, self._choose = decoder, choose
        self._prompt, self._return_scores = prompt, return_scores
        self._row_prompt = None if prompt is None else decoder.of_beams(prompt)

    def start(self) -> tuple[Any, ...]:
        """Return the variables before the first step: prompts are read."""
        decoder = self._decoder
        tokens, state = decoder.start(self._prompt)
        done, scores = (ops.zeros((decoder.rows,), dtype=kind) for kind in ("bool", "float32"))
        output = ops.full((decoder.rows, decoder.length), decoder.config.pad_id, dtype="int32")
        if self._row_prompt is not None:
            output = first_tokens(self._row_prompt, state.index, decoder.config.pad_id)
        return state, tokens, done, output, scores

    def unfinished(self, state: DecodingState, tokens: Any, done: Any, *rest: Any) -> Any:
        """Return whether there is another step."""
        return ops.logical_and(state.index < self._decoder.length, ops.logical_not(ops.all(done)))

    def step(
        self, state: DecodingState, tokens: Any, done: Any, output: Any, scores: Any
    ) -> tuple[Any, ...]:
        """Return the variables after one more token of each row."""
        config = self._decoder.config
        logits, new = self._decoder.step(state, tokens)
        chosen, counts = self._choose(logits, state.index), ops.logical_not(done)
        if self._row_prompt is not None:
            given = column(self._row_prompt, state.index)
            free = given == config.pad_id
            chosen, counts = ops.where(free, chosen, given), ops.logical_and(free, counts)
        if self._return_scores:
            steps = ops.log_softmax(logits, axis=-1)
            own = ops.take_along_axis(steps, ops.expand_dims(chosen, 1), axis=1)[:, 0]
            scores += ops.where(counts, own, 0.0)
        tokens = ops.where(done, config.pad_id, chosen)
        output = write(output, state.index, tokens)
        return new, tokens, ops.logical_or(done, tokens == config.end_id), output, scores

    def run(self) -> tuple[Any, Any]:
        """Run all steps: tokens (rows, length) int32, padded after the end, and scores (rows,), 0 unless computed.

        A score is the model's log probability of the tokens after the prompt.
        """
        return ops.while_loop(self.unfinished, self.step, self.start())[3:]
