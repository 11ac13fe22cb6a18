"""Invariants of decoding, for every architecture and both ways of decoding.

By steps as at once, a batch as its rows alone, a beam of one as greedy decoding. The loop runs op by op here: no graph
is traced, so that all architectures have their turn.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed.decoding import _generation, engine
from heed.models import LanguageModel
from heed.models._recurrent_translator import ATTENTIONS
from heed.models.config import POSITIONS
from tests.models.builders import (
    prompts,
    small_language_model,
    small_model,
    small_recurrent,
    sources,
)

LENGTH, ROWS = 6, 4
ALONE = (1, 2)  # of a language model the first begins with nothing
NEAR = {"atol": 2e-4, "rtol": 1e-4}  # float32, and weights of order 1
TIE = 5e-3  # of log probabilities: such a choice may go either way
WAYS = {"graph": _generation._decode, "engine": engine.decode}
slow = pytest.mark.slow
RECURRENT = [(attention, cell) for attention in ATTENTIONS for cell in ("lstm", "gru")]


TRANSFORMERS = {position: {"position": position, "decoder_layers": 2} for position in POSITIONS}
TRANSFORMERS["post-norm"] = {"norm_first": False, "encoder_layers": 2}
TRANSFORMERS["as newer ones"] = {
    "position": "rotary",
    "normalization": "rms",
    "gated": True,
    "num_heads": 4,
    "num_key_value_heads": 2,
    "qk_norm": True,
    "sinks": True,
    "sliding_window": 3,
    "soft_cap": 2.0,
    "use_bias": False,
    "value_dim": 3,
}
MODELS = {
    **{f"Transformer, {name}": (small_model, options) for name, options in TRANSFORMERS.items()},
    **{
        f"LanguageModel, {position}": (small_language_model, {"position": position, "layers": 2})
        for position in POSITIONS
    },
    **{
        f"RecurrentTranslator, {attention}, {cell}": (
            small_recurrent,
            {"attention": attention, "cell": cell, "tie_embeddings": False},
        )
        for attention, cell in RECURRENT
    },
    "RecurrentTranslator, of several layers": (
        small_recurrent,
        {
            "attention": "location",
            "tie_embeddings": False,
            "encoder_layers": 2,
            "decoder_layers": 3,
        },
    ),
}


def telling(builder: Any, options: dict[str, Any]) -> Any:
    """Return a model that says several things, each of them for a reason, so that mistakes show.

    Some weights of order 1 always say the same, and near uniform scores would hide what goes into them.
    """
    for seed in range(4, 40):
        model = builder(seed=seed, end_bias=0.7, **options)
        tokens = greedy("graph", model, asked(model))
        logs = log_probabilities(model, asked(model), tokens)
        if len({row.tobytes() for row in tokens}) > 2 and logs[np.isfinite(logs)].std() > 0.5:
            return model
    raise AssertionError(f"no weights were found that tell: {options}")


def asked(model: Any) -> dict[str, Any]:
    """Return the inputs: sources of several lengths; for a language model prompts, one of them empty."""
    if isinstance(model, LanguageModel):
        return {"prompt": prompts(ROWS, 4, seed=2)}
    return {"source": sources(ROWS, 6, seed=2)}


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """Return one row, without padding."""
    return {
        name: x[row : row + 1, : max(1, np.count_nonzero(x[row]))] for name, x in inputs.items()
    }


def decode(way: str, model: Any, inputs: dict[str, Any], **options: Any) -> tuple[Any, Any]:
    """Return tokens (B, N, L) and scores (B, N), op by op."""
    given_options = {"max_length": LENGTH, "return_scores": True, **options}
    source, prompt = inputs.get("source"), inputs.get("prompt")
    made = _generation.make_request(model, source, prompt, given_options)
    tokens, scores = WAYS[way](model, made.inputs, made.options)
    return np.asarray(tokens), None if scores is None else np.asarray(scores)


def greedy(way: str, model: Any, inputs: dict[str, Any], **options: Any) -> Any:
    return decode(way, model, inputs, method="greedy", return_scores=False, **options)[0][:, 0]


def search(way: str, model: Any, inputs: dict[str, Any], beams: int, **options: Any) -> Any:
    return decode(way, model, inputs, method="beam", beam_size=beams, length_penalty=0.6, **options)


def ways(model: Any) -> list[str]:
    """By the engine too, where it takes the model."""
    reasons = engine.unsupported_reasons(
        model, {"method": "beam", "coverage_penalty": 0.0, "beam_size": 3, "use_cache": True}
    )
    return ["graph"] if reasons else list(WAYS)


def log_probabilities(model: Any, inputs: dict[str, Any], tokens: Any) -> np.ndarray:
    """Return (B, L, vocabulary): of the token at each place, after those before it, all at once."""
    start = np.full((len(tokens), 1), model.config.start_id, "int32")
    memory = model.encode_source(inputs.get("source"))
    logits = model.decode_all(np.concatenate([start, tokens[:, :-1]], axis=1), memory)
    logits = np.asarray(logits, "float64")
    logits[..., [model.config.pad_id, model.config.start_id]] = -np.inf
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def sure(model: Any, inputs: dict[str, Any], tokens: Any) -> np.ndarray:
    """Return (B,): whether no choice of a greedy decoding was a tie."""
    logs = np.sort(log_probabilities(model, inputs, tokens), axis=-1)
    gaps = np.where(tokens != model.config.pad_id, logs[..., -1] - logs[..., -2], np.inf)
    return gaps.min(axis=1) > TIE


# What must hold of a model


def check_steps(model: Any) -> None:
    """Token by token, or several at once and then one by one, as all at once."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(2, 9, (ROWS, LENGTH)).astype("int32")
    tokens[:, 0] = model.config.start_id
    source = asked(model).get("source")
    memory = model.encode_source(None if source is None else keras.ops.convert_to_tensor(source))
    whole = np.asarray(model.decode_all(keras.ops.convert_to_tensor(tokens), memory))
    called = model(tokens if source is None else {"source": source, "target": tokens})
    np.testing.assert_allclose(whole, called, **NEAR)
    for first in (1, 3):
        state, place = model.make_state(ROWS, LENGTH, memory), 0
        for end in range(first, LENGTH + 1):
            read = keras.ops.convert_to_tensor(tokens[:, place:end])
            logits, state = model.decode_step(read, place, state, memory)
            np.testing.assert_allclose(logits, whole[:, end - 1], **NEAR)
            place = end


def check_cache(model: Any) -> None:
    inputs = asked(model)
    cached = greedy("graph", model, inputs)
    clear = sure(model, inputs, cached)
    again = greedy("graph", model, inputs, use_cache=False)
    np.testing.assert_array_equal(cached[clear], again[clear])
    of_cached, of_again = (
        search("graph", model, inputs, 2, num_results=2, use_cache=cache)[1]
        for cache in (True, False)
    )
    np.testing.assert_allclose(of_cached, of_again, **NEAR)


def check_rows(model: Any) -> None:
    """Compare a batch of sentences of several lengths with each by itself: the same tokens and scores, of all beams."""
    inputs = asked(model)
    for way in ways(model):
        together = greedy(way, model, inputs)
        clear = sure(model, inputs, together)
        assert clear.any()
        tokens, scores = search(way, model, inputs, 2, num_results=2)
        for row in ALONE:
            own = alone(inputs, row)
            if clear[row]:
                np.testing.assert_array_equal(greedy(way, model, own)[0], together[row])
            (own_tokens,), (own_scores,) = search(way, model, own, 2, num_results=2)
            np.testing.assert_allclose(own_scores, scores[row], **NEAR)
            if scores[row, 0] - scores[row, 1] > TIE:
                np.testing.assert_array_equal(own_tokens[0], tokens[row, 0])


def check_one_beam(model: Any) -> None:
    inputs = asked(model)
    for way in ways(model):
        tokens = greedy(way, model, inputs)
        clear = sure(model, inputs, tokens)
        found, scores = search(way, model, inputs, 1)
        np.testing.assert_array_equal(found[clear, 0], tokens[clear])
        # Its score is what the whole model gives these tokens.
        given_ones = np.zeros_like(tokens)
        if "prompt" in inputs:
            given_ones[:, : inputs["prompt"].shape[1]] = inputs["prompt"]
        written = (found[:, 0] != model.config.pad_id) & (given_ones == 0)
        logs = log_probabilities(model, inputs, found[:, 0])
        own = np.take_along_axis(logs, found[:, 0, :, None], axis=-1)[..., 0]
        lengths = written.sum(axis=1)
        expected = np.where(written, own, 0).sum(axis=1) / ((5 + lengths) / 6) ** 0.6
        np.testing.assert_allclose(scores[:, 0], expected, **NEAR)


def check_both_ways(model: Any) -> None:
    if "engine" not in ways(model):
        return
    inputs = asked(model)
    (tokens, scores), (others, of_others) = (
        search(way, model, inputs, 3, num_results=3) for way in ways(model)
    )
    np.testing.assert_allclose(scores, of_others, **NEAR)
    clear = scores[:, 0] - scores[:, 1] > TIE
    np.testing.assert_array_equal(tokens[clear, 0], others[clear, 0])


CHECKS = (check_steps, check_cache, check_rows, check_one_beam, check_both_ways)


# One has its turn in the default run; each option by itself has it in other tests of decoding.
QUICK = ("Transformer, as newer ones",)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=slow) for name in MODELS]
)
def test_decoding_is_exact(name: str) -> None:
    model = telling(*MODELS[name])
    for check in CHECKS:
        check(model)


OPTIONS: dict[str, Any] = {
    "position": POSITIONS,
    "norm_first": [True, False],
    "normalization": ["layer", "rms"],
    "gated": [True, False],
    "num_key_value_heads": [1, 2, 4],
    "sliding_window": [None, 2, 4],
    "sinks": [True, False],
    "soft_cap": [None, 1.5],
    "qk_norm": [True, False],
    "value_dim": [None, 3],
    "use_bias": [True, False],
}


@slow
@given(
    options=st.fixed_dictionaries({name: st.sampled_from(x) for name, x in OPTIONS.items()}),
    layers=st.sampled_from([1, 2]),
    builder=st.sampled_from([small_model, small_language_model]),
)
def test_decoding_is_exact_whatever_is_combined(options: Any, layers: int, builder: Any) -> None:
    depth = {"decoder_layers": layers} if builder is small_model else {"layers": layers}
    model = telling(builder, {**options, **depth, "num_heads": 4})
    for check in CHECKS:
        check(model)
