"""Beam search."""

from __future__ import annotations

import math
from typing import Any

from keras import ops

from heed.decoding._incremental_decoder import (
    DecodingState,
    IncrementalDecoder,
    column,
    first_tokens,
    write,
)

_NONE = -1e30
_LEAST = 1e-9  # of coverage, for its logarithm


def penalty(length: Any, alpha: float) -> Any:
    """Return ((5 + length) / 6)**alpha: divides the log probability of `length` tokens."""
    return ((5.0 + length) / 6.0) ** alpha


def coverage_score(coverage: Any, beta: float) -> Any:
    """Return `beta * sum_i log(min(sum_j p_ij, 1))` of a coverage (..., S): added to the score, 0 at most."""
    return beta * ops.sum(ops.log(ops.clip(coverage, _LEAST, 1.0)), axis=-1)


def _pick(sequences: Any, indices: Any) -> Any:
    """Take sequences of (B, M, L) at indices (B, K): (B, K, L)."""
    return ops.take_along_axis(sequences, ops.expand_dims(indices, -1), axis=1)


def beam_search(
    decoder: IncrementalDecoder,
    beams: int,
    length_penalty: float,
    prompt: Any = None,
    results: int = 1,
    coverage_penalty: float = 0.0,
) -> tuple[Any, Any]:
    """Return the best sequences of each row that a beam of hypotheses finds.

    In each step the open hypotheses of a row grow by every token. An extension that ends and ranks among the best
    `beams` is finished: its score is divided by `penalty`, and `coverage_score` is added. The best `beams` others stay
    open. A row is done when no open hypothesis can beat the worst of the `results` best finished ones, so that the
    first of several results is the one of a search for one. `beams` finished ones do not suffice: a confident model
    ranks many early ends second, long before its true one. A row that is done no longer changes, so rows do not depend
    on their neighbours. One beam is greedy decoding and done at its first end; a beam as wide as the number of
    sequences is an exhaustive search.

    Args:
        decoder: Runs the model, `beams` rows for each source.
        beams, length_penalty, coverage_penalty: See `generate`. With a coverage penalty the decoder must track the
            coverage, which includes that of the prompt. A coverage below 1e-9 counts as 1e-9.
        prompt: (B, length) int32, the first tokens of each row, then padding; or None.
        results: N, the number of sequences to return, at most `beams`.

    Returns:
        Tokens (B, N, length) int32, padded after the end, and scores (B, N): the best finished hypotheses; then the
        best open ones, which are cut; then padding and -inf.

    Source:
        Wu et al. 2016 (GNMT), section 7, equation 14. As there, the penalties compare sequences that have ended (or are
        cut), not open ones.
    """
    config = decoder.config
    batch, length = decoder.batch_size, decoder.length
    vocabulary = config.target_vocabulary_size
    candidates = min(2 * beams, beams * vocabulary)
    given_length: Any = 0.0
    if prompt is not None:
        given_length = ops.sum(ops.cast(prompt != config.pad_id, "float32"), axis=1, keepdims=True)
    full = penalty(float(length) - given_length, length_penalty)
    first_row = ops.expand_dims(ops.arange(batch, dtype="int32") * beams, 1)

    def covered(state: DecodingState) -> Any:
        return ops.reshape(coverage_score(state.coverage, coverage_penalty), (-1, beams))

    def unfinished(state: DecodingState, done: Any, *rest: Any) -> Any:
        return ops.logical_and(state.index < length, ops.logical_not(ops.all(done)))

    def step(
        state: DecodingState,
        done: Any,
        tokens: Any,
        scores: Any,
        sequences: Any,
        finished_scores: Any,
        finished: Any,
    ) -> tuple[Any, ...]:
        index = state.index
        logits, state = decoder.step(state, ops.reshape(tokens, (-1,)))
        steps = ops.reshape(ops.log_softmax(logits, axis=-1), (-1, beams, vocabulary))
        if prompt is not None:
            given = ops.reshape(column(prompt, index), (-1, 1, 1))
            sure = ops.where(ops.arange(vocabulary) == given, 0.0, _NONE)
            steps = ops.where(given == config.pad_id, steps, sure)
        totals = ops.reshape(ops.expand_dims(scores, -1) + steps, (-1, beams * vocabulary))
        # At most one extension of each beam ends: of 2 K extensions K do not.
        totals, flat = ops.top_k(totals, candidates)
        flat = ops.cast(flat, "int32")
        parents, tokens = flat // vocabulary, flat % vocabulary
        ends = tokens == config.end_id
        grown = write(_pick(sequences, parents), index, tokens)

        real = ops.logical_and(ends, totals > _NONE / 2)
        ending = ops.logical_and(real, ops.logical_not(ops.expand_dims(done, 1)))[:, :beams]
        count = ops.maximum(ops.cast(index, "float32") + 1.0 - given_length, 0.0)
        new = totals / penalty(count, length_penalty)
        if coverage_penalty:
            new += ops.take_along_axis(covered(state), parents, axis=1)
        new = ops.where(ending, new[:, :beams], _NONE)
        finished_scores, chosen = ops.top_k(ops.concatenate([finished_scores, new], axis=1), beams)
        finished = _pick(ops.concatenate([finished, grown[:, :beams]], axis=1), chosen)

        scores, chosen = ops.top_k(ops.where(ends, _NONE, totals), beams)
        sequences = _pick(grown, chosen)
        tokens = ops.take_along_axis(tokens, chosen, axis=1)
        parents = ops.take_along_axis(parents, chosen, axis=1)
        state = decoder.select(state, ops.reshape(parents + first_row, (-1,)))

        attainable = (scores / full)[:, 0]
        best, worst = finished_scores[:, 0], finished_scores[:, results - 1]
        hopeless = ops.logical_and(worst > _NONE / 2, attainable <= worst)
        hopeless = ops.logical_or(hopeless, scores[:, 0] <= _NONE / 2)
        if beams == 1:  # greedy decoding does not follow the second best
            hopeless = True
        done = ops.logical_or(done, ops.logical_and(best > _NONE / 2, hopeless))
        return state, done, tokens, scores, sequences, finished_scores, finished

    none = ops.full((batch, beams), _NONE, dtype="float32")
    empty = ops.full((batch, beams, length), config.pad_id, dtype="int32")
    # All beams start equal: without this they would stay equal.
    only_first = ops.where(ops.arange(beams) == 0, 0.0, none)
    tokens, state = decoder.start(prompt)
    sequences = empty
    if prompt is not None:
        given = ops.expand_dims(first_tokens(prompt, state.index, config.pad_id), 1)
        sequences = ops.repeat(given, beams, axis=1)
    start = (
        state,
        ops.zeros((batch,), dtype="bool"),
        ops.reshape(tokens, (-1, beams)),
        only_first,
        sequences,
        none,
        empty,
    )
    result = ops.while_loop(unfinished, step, start)
    open_scores, open_sequences, finished_scores, finished = result[3:]
    open_scores = open_scores / full
    if coverage_penalty:  # it may change the order
        open_scores, order = ops.top_k(open_scores + covered(result[0]), beams)
        open_sequences = _pick(open_sequences, order)
    # Open hypotheses follow finished ones.
    ended = ops.sum(ops.cast(finished_scores > _NONE / 2, "int32"), axis=1, keepdims=True)
    place = ops.arange(results, dtype="int32")
    chosen = ops.where(place < ended, place, beams + place - ended)
    scores = ops.concatenate([finished_scores, open_scores], axis=1)
    scores = ops.take_along_axis(scores, chosen, axis=1)
    found = _pick(ops.concatenate([finished, open_sequences], axis=1), chosen)
    real = scores > _NONE / 2
    found = ops.where(ops.expand_dims(ops.logical_or(real, place == 0), 2), found, config.pad_id)
    return found, ops.where(real, scores, -math.inf)
