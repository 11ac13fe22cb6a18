"""A decoder by itself: what it computes, learns and writes, by the engine and in the graph."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.decoding import _generation
from heed.models import (
    Decodable,
    LanguageModel,
    LanguageModelConfig,
    explain_generate,
    generate,
)
from heed.models.config import POSITIONS
from heed.ops.backends import current
from tests.backend import on_tensorflow, tf
from tests.decoding.ways import by_both, by_the_engine, in_the_graph, request
from tests.models.builders import prompts, small_language_model

TOKENS = np.array([[1, 3, 4, 5, 6], [1, 7, 7, 8, 3], [1, 8, 3, 4, 2]], "int32")
slow = pytest.mark.slow


@keras.saving.register_keras_serializable(package="test_language_model")
def farther_is_less(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return score - 0.1 * keras.ops.abs(query - key)


# Of each field of a config, other values than those of `small_language_model`.
CHANGED: dict[str, Any] = {
    "vocabulary_size": [4, 70],
    "layers": [3],
    "width": [2, 36],
    "num_heads": [1, 4],
    "num_key_value_heads": [1],
    "feed_forward_width": [1, 33],
    "dropout": [0.5],
    "attention_dropout": [0.5],
    "activation": ["gelu", "silu"],
    "norm_first": [False],
    "position": [*POSITIONS],
    "max_length": [9],
    "tie_embeddings": [False],
    "scale_embeddings": [False],
    "logit_soft_cap": [0.5],
    "sliding_window_pattern": [2],
    "rotary_local_base": [5.0],
    "rotary_pattern": [2],
    "normalize_embeddings": [True],
    "pad_id": [5],
    "start_id": [6],
    "end_id": [4],
    "key_dim": [6],
    "value_dim": [5, 17],
    "use_bias": [False],
    "qkv_bias": [True],
    "soft_cap": [0.5],
    "sliding_window": [1, 3],
    "normalization": ["rms"],
    "post_norms": [True],
    "norm_epsilon": [0.5],
    "gated": [True],
    "qk_norm": [True],
    "sinks": [True],
    "score_scale": [1.5],
    "rotary_base": [7.0],
    "rotary_dim": [2, 0],
    "parallel": [True],
    "score_mod": ["test_language_model>farther_is_less"],
}
CASES = [{name: value} for name, values in CHANGED.items() for value in values]
METHODS: dict[str, dict[str, Any]] = {
    "greedy": {"method": "greedy"},
    "beam": {"method": "beam", "beam_size": 3},
    "sample": {"method": "sample", "seed": 5, "top_p": 0.9},
}


def varied(**changes: Any) -> Any:
    """Return a model with these changes, and those that they need to make sense."""
    if "sliding_window_pattern" in changes:
        changes |= {"sliding_window": 2, "layers": 2}
    if "rotary_local_base" in changes:
        changes |= {"sliding_window": 2}
    if "width" in changes or "num_heads" in changes:
        changes.setdefault("position", "alibi")  # rotary positions want heads of an even width
    return small_language_model(seed=4, **changes)


def test_every_field_of_the_config_is_tried() -> None:
    assert set(CHANGED) == {field.name for field in dataclasses.fields(LanguageModelConfig)}


@pytest.mark.parametrize(
    "changes",
    [
        {"position": "relative"},
        {"sliding_window": 2},
        {"norm_first": False},
        *(pytest.param({"position": x}, marks=slow) for x in POSITIONS if x != "relative"),
    ],
)
def test_scores_of_the_next_token(changes: Any) -> None:
    model = small_language_model(layers=2, **changes)
    logits, scores = model(TOKENS, return_attention_scores=True)
    assert tuple(logits.shape) == (3, 5, 9)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    np.testing.assert_array_equal(model(TOKENS), logits)
    assert [tuple(x.shape) for x in scores] == [(3, 2, 5, 5)] * 2
    for layer in scores:
        assert not np.any(np.triu(np.asarray(layer), k=1))
        np.testing.assert_allclose(np.sum(np.asarray(layer), -1), 1, rtol=1e-5)


@settings(max_examples=5)
@given(st.sampled_from(CASES), st.integers(1, 4), st.data())
def test_a_token_sees_those_before_it_alone(changes: Any, kept: int, data: Any) -> None:
    """So what stands behind a text, padding or anything, changes nothing of it."""
    model = varied(**changes)
    size = model.config.vocabulary_size
    behind = data.draw(st.lists(st.integers(0, size - 1), min_size=5 - kept, max_size=5 - kept))
    tokens = np.minimum(TOKENS, size - 1)
    changed = tokens.copy()
    changed[:, kept:] = behind
    one, other = np.asarray(model(tokens)), np.asarray(model(changed))
    np.testing.assert_allclose(one[:, :kept], other[:, :kept], atol=2e-5)
    np.testing.assert_allclose(one[:, :kept], model(tokens[:, :kept]), atol=2e-5)


def write(model: Any, prompt: Any, max_length: int = 8, **options: Any) -> np.ndarray:
    return np.asarray(generate(model, prompt=prompt, max_length=max_length, **options))


@pytest.mark.slow
@by_the_engine
@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=slow) for n in (1, 2))])
def test_the_engine_writes_what_the_graph_does(first: int) -> None:
    """Whatever the config, with prompts of several lengths; the methods take turns."""
    found = set()
    cases = [x for x in CASES if "score_mod" not in x][:: 1 if first else 2]
    for number, changes in enumerate(cases):
        model, method = varied(**changes), list(METHODS)[(first + number) % len(METHODS)]
        config = model.config
        prompt = prompts(4, 5, number, min(9, config.vocabulary_size))
        given = np.where(prompt == 0, config.pad_id, prompt)
        mine, graphs = by_both(model, None, given, 8, method=method)
        np.testing.assert_array_equal(mine, graphs, err_msg=str(changes))
        kept = np.cumprod(given != config.pad_id, 1).astype(bool)
        kept &= np.cumsum(given == config.end_id, 1) - (given == config.end_id) == 0
        np.testing.assert_array_equal(mine[:, :5][kept], given[kept])
        found.add(mine.tobytes())
    assert len(found) > len(cases) // 2


@by_the_engine
def test_the_engine_reads_long_prompts_at_once() -> None:
    """As the graph does; and a row's tokens do not depend on what stands beside it."""
    changes = {"layers": 2, "num_key_value_heads": 1, "sliding_window": 50, "sinks": True}
    model = small_language_model(seed=4, vocabulary_size=40, **changes)
    prompt = prompts(4, 80, 1, 40)
    prompt[1, :70] = 9  # the graph reads at once what all rows have
    prompt[2:, 66:] = prompt[0, 66:]
    prompt[2:, :66] = 7
    mine, graphs = by_both(model, None, prompt, 83, method="beam")
    np.testing.assert_array_equal(mine, graphs)
    alone = write(model, prompt[2:3], 83, method="beam", weights="float32")
    np.testing.assert_array_equal(alone[0], mine[2])


@pytest.mark.parametrize(
    ("changes", "method"),
    [
        (
            {"num_key_value_heads": 1, "sinks": True, "sliding_window": 3, "layers": 3}
            | {"rotary_local_base": 3.0, "sliding_window_pattern": 2, "rotary_pattern": 3}
            | {"key_dim": 8, "rotary_dim": 4, "score_scale": 1.7, "parallel": True},
            "greedy",
        ),
        ({"position": "relative", "norm_first": False}, "beam"),
        pytest.param({"position": "learned", "layers": 2}, "sample", marks=slow),
    ],
)
@in_the_graph()
def test_the_cache_changes_nothing(changes: Any, method: str) -> None:
    model = small_language_model(seed=4, end_bias=0.7, **changes)
    for prompt in (prompts(length=3), np.minimum(prompts()[[0, 0, 0]] + [[0], [1], [2]], 8)):
        cached = write(model, prompt, **METHODS[method])
        again = write(model, prompt, use_cache=False, **METHODS[method])
        np.testing.assert_array_equal(cached, again)


@pytest.mark.skipif(not current().has_dynamic_shapes(), reason="prompts are read token by token")
@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_prompts_that_are_read_at_once(method: str, monkeypatch: Any) -> None:
    """In one step, whatever they share; the tokens are those of prompts that are read token by token."""
    model = small_language_model(seed=4, end_bias=0.7)
    steps: list[int] = []
    real = LanguageModel.decode_step

    def counted(self: Any, tokens: Any, *arguments: Any) -> Any:
        steps.append(int(tokens.shape[1]))
        return real(self, tokens, *arguments)

    monkeypatch.setattr(LanguageModel, "decode_step", counted)
    for prompt, shared in (
        ([[3, 4, 5, 6, 7], [5, 6, 7, 0, 0], [8, 8, 8, 8, 0]], 3),
        ([[3, 4, 2, 6, 7], [5, 6, 7, 2, 0]], 2),  # with the end
    ):
        call = request(model, None, prompt, 8, return_scores=False, **METHODS[method])
        steps.clear()
        at_once = np.asarray(_generation._decode(*call)[0])[:, 0]
        assert steps[0] == shared
        assert set(steps[1:]) == {1}
        assert len(steps) <= 1 + 8 - shared
        steps.clear()
        with monkeypatch.context() as patched:
            patched.setattr(current(), "has_dynamic_shapes", lambda: False)
            one_by_one = _generation._decode(*call)[0][:, 0]
        assert set(steps) == {1}
        np.testing.assert_array_equal(at_once, one_by_one)
    np.testing.assert_array_equal(at_once[:, :4], [[3, 4, 2, 0], [5, 6, 7, 2]])
    assert not at_once[:, 4:].any()


@on_tensorflow
@pytest.mark.usefixtures("compiled")
def test_inside_a_tf_function() -> None:
    """By XLA, which requires fixed sizes; and with unknown sizes."""
    model = small_language_model(seed=4, end_bias=0.7)
    expected = write(model, prompts())
    compiled = tf.function(lambda x: generate(model, prompt=x, max_length=8), jit_compile=True)
    np.testing.assert_array_equal(compiled(tf.constant(prompts())), expected)
    with in_the_graph():
        spec = [tf.TensorSpec((None, None), tf.int32)]
        traced = tf.function(lambda x: generate(model, prompt=x, max_length=8), spec)
        np.testing.assert_array_equal(traced(prompts()), expected)
        np.testing.assert_array_equal(traced(prompts()[:2, :3]), write(model, prompts()[:2, :3]))
        assert traced(np.zeros((0, 3), "int32")).shape == (0, 8)


@by_the_engine
@pytest.mark.parametrize("name", ["make_state", "decode_step", "encode_source"])
def test_a_subclass_that_decodes_otherwise_goes_on_in_the_graph(name: str) -> None:
    model = small_language_model(seed=4)
    assert explain_generate(model).implementation == "engine"
    real = getattr(LanguageModel, name)
    own = lambda self, *arguments: real(self, *arguments)  # noqa: E731
    model.__class__ = type("Own", (LanguageModel,), {name: own})
    assert f"Own has a `{name}` of its own" in str(explain_generate(model))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"source": [[3, 4]]}, r"`source` must be None for a language model.*Received: source="),
        ({}, r"`prompt` must be given where there is no `source`\. Received: prompt=None"),
        (
            {"prompt": [[0.5]]},
            r"`prompt` must be integers in .* of shape \(B, P\)\. .*float(32|64)",
        ),
        ({"prompt": [3, 4]}, r"`prompt` must be integers in .* of shape \(B, P\)\. .*shape=\(2,\)"),
        ({"prompt": np.full((2, 9), 3)}, r"`prompt` must not be longer than `max_length`\. .*9\)"),
    ],
)
def test_what_cannot_be_written_is_named(arguments: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        generate(small_language_model(), max_length=8, **arguments)


def test_empty_batches_and_prompts_of_no_tokens() -> None:
    model = small_language_model(seed=4)
    assert write(model, np.zeros((0, 3), "int32")).shape == (0, 8)
    empty = write(model, np.zeros((2, 0), "int32"))
    np.testing.assert_array_equal(empty, write(model, np.zeros((2, 3), "int32")))
    np.testing.assert_array_equal(empty[0], empty[1])


def test_it_is_decodable() -> None:
    assert isinstance(small_language_model(), Decodable)
