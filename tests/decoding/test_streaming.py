"""Tokens one by one: those of `generate`, from the engine and from the graph, however early the reader stops."""

from __future__ import annotations

import contextlib
import gc
import itertools
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import heed
from heed.decoding import engine, streaming
from heed.models import Ensemble, explain_generate, generate, stream
from heed.ops.backends import current
from tests.backend import BACKEND
from tests.decoding.ways import by_the_engine, in_the_graph
from tests.models.builders import small_language_model, small_model, sources

slow = pytest.mark.slow
WAYS = [pytest.param("engine", marks=by_the_engine), "graph"]
GREEDY: dict[str, Any] = {}
SAMPLED: dict[str, Any] = {"method": "sample", "seed": 5, "top_k": 5, "temperature": 1.5}
END_BIAS = 1.0  # makes rows end at different steps


@pytest.fixture
def decode_by() -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        yield lambda way: way == "graph" and stack.enter_context(in_the_graph())


def row_of(model: Any, source: Any = None, **options: Any) -> list[int]:
    """Return the tokens of `generate` for one row, without padding."""
    tokens = np.asarray(generate(model, source, **options))[0]
    return [int(x) for x in tokens if x != model.config.pad_id]


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "heed-stream"]


@pytest.mark.parametrize(
    ("way", "options"),
    [
        pytest.param("engine", GREEDY, marks=by_the_engine),
        pytest.param("engine", SAMPLED, marks=[by_the_engine, slow]),
        pytest.param("graph", GREEDY, marks=slow),
        pytest.param("graph", SAMPLED, marks=slow),
    ],
    ids=str,
)
def test_the_tokens_are_those_of_generate(decode_by: Any, way: str, options: Any) -> None:
    decode_by(way)
    model = small_model(seed=4, end_bias=END_BIAS, position="rotary")
    lengths = set()
    for seed, source in enumerate(sources(6) if way == "engine" else sources(6)[[0, 3]]):
        if "seed" in options:
            options = {**options, "seed": seed}
        expected = row_of(model, source[None], max_length=4, **options)
        assert list(model.stream(source[None], max_length=4, **options)) == expected
        lengths.add(len(expected))
    # The same seed makes other weights on JAX.
    assert len(lengths) > 1 or BACKEND == "jax", "some rows end, others are cut"


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("way", WAYS)
def test_compiled_steps(decode_by: Any, way: str, monkeypatch: Any) -> None:
    """As users run it: one graph for the loop, or one for a step."""
    decode_by(way)
    traces, step = [], streaming._step

    def count_traces(*arguments: Any) -> Any:
        traces.append(None)
        return step(*arguments)

    monkeypatch.setattr(streaming, "_step", count_traces)
    model = small_language_model(seed=3)
    expected = row_of(model, prompt=[[5, 6]], max_length=7)
    for _ in range(1 if way == "graph" else 2):  # the engine's call is traced when it is repeated
        assert [5, 6, *model.stream(prompt=[[5, 6]], max_length=7)] == expected
    steps = len(expected) - 2 if BACKEND == "torch" else 1  # PyTorch runs op by op
    assert len(traces) == (steps if way == "graph" else 0)


@pytest.mark.parametrize("way", WAYS)
def test_prompts_are_not_repeated(decode_by: Any, way: str) -> None:
    decode_by(way)
    model = small_language_model(seed=3)
    end = model.config.end_id
    few: list[Any] = [[[5, 6]], np.zeros((1, 0), int), [[5, end, 6]]]
    more = [[[5]], [[5, 0]], [[3] * 4]] if way == "engine" else []
    for prompt in few + more:
        given = list(itertools.takewhile(lambda x: x != 0, np.asarray(prompt).ravel().tolist()))
        if end in given:
            given = given[: given.index(end) + 1]
        expected = row_of(model, prompt=prompt, max_length=4)
        assert [*given, *stream(model, prompt=prompt, max_length=4)] == expected, prompt


@pytest.mark.parametrize("kind", ["ensemble", pytest.param("no cache", marks=slow)])
def test_what_the_graph_alone_decodes(kind: str) -> None:
    model, source = small_model(seed=4, activation="mish"), sources(1)
    options = SAMPLED if kind == "ensemble" else {"use_cache": False}
    if kind == "ensemble":
        model = Ensemble([model, small_model(seed=5, position="alibi")])
    assert explain_generate(model).implementation == "graph"
    expected = row_of(model, source, max_length=2, **options)
    assert list(model.stream(source, max_length=2, **options)) == expected


@by_the_engine
def test_weights_and_the_chosen_implementation_are_those_of_the_caller() -> None:
    model, source = small_model(seed=4), sources(1)
    expected = row_of(model, source, max_length=8, weights="int8")
    assert list(model.stream(source, max_length=8, weights="int8")) == expected
    with heed.set_implementation("portable"):
        tokens = model.stream(source, max_length=8)
    assert list(itertools.islice(tokens, 2)) == row_of(model, source, max_length=2)
    tokens.close()


@by_the_engine
def test_tokens_come_before_the_target_is_complete() -> None:
    """A target of 150,000 tokens would take half a minute or more."""
    model = small_language_model(seed=3, end_bias=-1e9)
    tokens = model.stream(prompt=[[5]], max_length=150_000)
    assert threads() == [], "nothing runs before a token is asked for"
    first = list(itertools.islice(tokens, 4))
    assert threads() == ["heed-stream"]
    started = time.monotonic()
    tokens.close()
    assert time.monotonic() - started < 10, "it does not go on to the end"
    assert threads() == []
    assert first == row_of(model, prompt=[[5]], max_length=5)[1:]


@by_the_engine
def test_a_reader_who_fails_or_forgets_leaves_nothing_behind() -> None:
    model = small_language_model(seed=3, end_bias=-1e9)

    def fail(token: int) -> None:
        raise KeyError(token)

    with pytest.raises(KeyError):
        list(map(fail, model.stream(prompt=[[5]], max_length=150_000)))
    gc.collect()
    assert threads() == []
    tokens = model.stream(prompt=[[5]], max_length=150_000)
    next(tokens)
    del tokens
    gc.collect()
    assert threads() == []
    model.stream(prompt=[[5]], max_length=8)  # never read
    held = weakref.ref(model)
    del model
    gc.collect()
    assert held() is None


@by_the_engine
def test_errors_of_the_other_thread_reach_the_reader(monkeypatch: Any) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(engine, "decode", fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        list(small_model(seed=4).stream(sources(1), max_length=8))
    assert threads() == []


@by_the_engine
def test_a_process_may_end_while_tokens_are_decoded() -> None:
    program = """
        import gc
        gc.disable()  # which saves a third of the time of imports
        from tests.models.builders import small_language_model
        gc.freeze()
        tokens = small_language_model(seed=3, end_bias=-1e9).stream(prompt=[[5]], max_length=10**6)
        print(next(tokens) > 0)
        kept = [tokens]
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_refusals_come_at_once() -> None:
    model = small_model(seed=4)
    for arguments, text in (
        ({"method": "beam"}, "a beam search may replace any token.*Received: method='beam'"),
        ({"method": "best"}, "`method` must be one of"),
        ({"max_length": 0}, "`max_length` must be"),
        ({"source": np.ones((2, 3), int)}, r"`source` must have one row.*\(2, 3\)"),
        ({"source": np.ones((0, 3), int)}, r"`source` must have one row.*\(0, 3\)"),
        ({"top_p": 2.0}, "`top_p` must be in"),
    ):
        with pytest.raises(ValueError, match=text):
            model.stream(**{"source": sources(1), "max_length": 8, **arguments})


def test_what_cannot_be_streamed() -> None:
    with pytest.raises(TypeError, match="Decodable"):
        stream(keras.Sequential(), np.ones((1, 2)), max_length=3)


@pytest.mark.usefixtures("compiled")
@pytest.mark.skipif(BACKEND == "torch", reason="heed compiles nothing there")
def test_a_compiled_function_cannot_stream() -> None:
    model = small_model(seed=4)

    def inside(source: Any) -> Any:
        return model.stream(source, max_length=4)

    inside = current().compile_graph(inside)
    with pytest.raises(ValueError, match="outside of compiled functions"):
        inside(keras.ops.convert_to_tensor(sources(1)))
