"""Tracing functions of users: what they may hold, what is recognised, and what is refused, with its line."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from heed.ops.score_mod import tracing
from heed.ops.score_mod.tracing import trace_mask, trace_score
from tests.ops.score_mod import programs

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(3, 11)).astype("float32")
IDS = np.array([[0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 2, 3]])
FACTOR = 2.0
EMPTY = np.zeros(0, "float32")


def value(function: Callable[..., Any]) -> np.ndarray:
    """Return what a traced function gives, in NumPy."""
    traced = trace_score(function)
    arrays = [ops.convert_to_numpy(x) for x in traced.captures]
    leaves = programs.leaves(0)
    return np.broadcast_to(programs.reference(traced.program, leaves, arrays), programs.SIZES)


def expected(function: Callable[..., Any]) -> np.ndarray:
    """Return what a function of NumPy gives for all pairs."""
    leaves = programs.leaves(0)
    return np.broadcast_to(function(*leaves.values()), programs.SIZES)


def line_of(function: Callable[..., Any], text: str) -> str:
    """Return the place of a line of this file."""
    lines, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + next(i for i, line in enumerate(lines) if text in line)}"


temperature = ops.convert_to_tensor(np.float32(0.7))
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "operators": (
        lambda s, b, h, q, k: -(s * 2 - 1) / 3 + (q - k) % 3 - (q // 2) ** 2 + abs(q - k),
        lambda s, b, h, q, k: -(s * 2 - 1) / 3 + (q - k) % 3 - (q // 2) ** 2 + abs(q - k),
    ),
    "comparisons": (
        lambda s, b, h, q, k: ops.where((q == k) | ~(b != 0) & (h >= 1), s, -1.0),
        lambda s, b, h, q, k: np.where((q == k) | ~(b != 0) & (h >= 1), s, -1.0),
    ),
    "bits": (
        lambda s, b, h, q, k: s * ((q ^ k) & 3) + (q << 2 >> 1),
        lambda s, b, h, q, k: s * ((q ^ k) & 3) + (q << 2 >> 1),
    ),
    "functions": (
        lambda s, b, h, q, k: (
            ops.clip(ops.exp(s), 0.5, 2) + ops.log1p(ops.cast(k, "float32")) + ops.silu(s)
        ),
        lambda s, b, h, q, k: np.clip(np.exp(s), 0.5, 2) + np.log1p(k) + s / (1 + np.exp(-s)),
    ),
    "take": (
        lambda s, b, h, q, k: s + ops.take(ops.take(TABLE, h, axis=0), k - q + 5),
        lambda s, b, h, q, k: s + TABLE[h, k - q + 5],
    ),
    "brackets": (
        lambda s, b, h, q, k: ops.where(IDS[b, q % 6] == IDS[b, k], s + TABLE[h, 2], FACTOR),
        lambda s, b, h, q, k: np.where(IDS[b, q % 6] == IDS[b, k], s + TABLE[h, 2], FACTOR),
    ),
    "outside of a table": (
        lambda s, b, h, q, k: ops.take(TABLE[0], 3 * (k - q)),
        lambda s, b, h, q, k: TABLE[0][
            np.clip(np.where(k < q, 3 * (k - q) + 11, 3 * (k - q)), 0, 10)
        ],
    ),
    "arrays before pairs": (
        lambda s, b, h, q, k: s * temperature + ops.cumsum(ops.exp(TABLE), axis=1)[h][k],
        lambda s, b, h, q, k: s * np.float32(0.7) + np.cumsum(np.exp(TABLE), 1)[h, k],
    ),
    "arrays of NumPy": (  # NumPy computes with them before anything is traced
        lambda s, b, h, q, k: s + ops.take(np.sqrt(np.abs(TABLE)).ravel(), k),
        lambda s, b, h, q, k: s + np.sqrt(np.abs(TABLE)).ravel()[k],
    ),
    "a loop of Python": (
        lambda s, b, h, q, k: sum((TABLE[0, i] * ops.relu(s - i) for i in range(3)), s),
        lambda s, b, h, q, k: sum((TABLE[0, i] * np.maximum(s - i, 0) for i in range(3)), s),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_function_gives_what_it_gives_in_numpy(name: str) -> None:
    function, plain = CASES[name]
    np.testing.assert_allclose(value(function), expected(plain), rtol=1e-6, atol=1e-6)


class Temperature(keras.layers.Layer):
    """A score function with a weight."""

    def build(self, _: Any = None) -> None:
        self.log = self.add_weight(shape=(3,), initializer="ones", name="log")

    def call(self, score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return ops.exp(self.log)[head] * score


def test_layers_partial_functions_and_methods_are_functions() -> None:
    want = np.e * programs.leaves(0)["SCORE"]
    layer = Temperature()
    np.testing.assert_allclose(value(layer), want, rtol=1e-6)
    np.testing.assert_allclose(value(layer.call), want, rtol=1e-6)

    def scaled(factor: Any, score: Any, *indices: Any) -> Any:
        return factor * score

    np.testing.assert_allclose(value(functools.partial(scaled, np.float32(np.e))), want, rtol=1e-6)


def count_traces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that grows with each trace."""
    traces: list[Any] = []
    original = tracing._trace

    def counted(*args: Any) -> Any:
        traces.append(args[0])
        return original(*args)

    monkeypatch.setattr(tracing, "_trace", counted)
    monkeypatch.setattr(tracing, "_traces", {})
    return traces


def test_a_function_made_anew_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = count_traces(monkeypatch)

    def make(table: Any, number: float = 1.0) -> Callable[..., Any]:
        scale = lambda x: x * number  # noqa: E731
        return lambda s, b, h, q, k: scale(s) + ops.take(ops.exp(table), k)

    one, two = (RNG.normal(size=6).astype("float32") for _ in range(2))
    first, second = value(make(one)), value(make(two))
    assert len(traces) == 1
    # The values of captured arrays are those of the call.
    np.testing.assert_allclose(
        second - first, expected(lambda s, b, h, q, k: np.exp(two)[k] - np.exp(one)[k]), atol=1e-5
    )
    value(make(one, 2.0))  # another number of Python
    value(make(one[:5]))  # another shape
    value(make(one.astype("int32")))  # another dtype
    assert len(traces) == 4
    value(make(two, 2.0))
    assert len(traces) == 4


def test_what_cannot_be_recognised_is_traced_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = count_traces(monkeypatch)

    class Box:
        width = 1

    box = Box()
    function = lambda s, b, h, q, k: s * box.width  # noqa: E731
    before = value(function)
    box.width = 3
    np.testing.assert_allclose(value(function), 3 * before)
    assert len(traces) == 2


def test_a_changed_global_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    function = lambda s, b, h, q, k: s * FACTOR  # noqa: E731
    before = value(function)
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    np.testing.assert_allclose(value(function), 2.5 * before)


def branches(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    doubled = score * 2
    if query >= key:
        return doubled
    return score


def sums(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return score + ops.cumsum(score)


def draws(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return score + keras.random.uniform(())


def reads_whole(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return score + TABLE


def rounds(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return ops.cast(score, "float16") * 2


def leaves_keras(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return np.exp(score)


def fails(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return score + {}["missing"]


@pytest.mark.parametrize(
    ("function", "line", "why"),
    [
        (branches, "if query", "asks whether a traced value is true"),
        (sums, "cumsum", "`keras.ops.cumsum` is none of the operations of a score function"),
        (reads_whole, "TABLE", r"shape \(3, 11\)"),
        (rounds, "float16", "a cast to float16 would round"),
        (leaves_keras, "np.exp", "Traced"),
        (fails, "missing", "KeyError: 'missing'"),
    ],
)
def test_errors_name_function_and_line(function: Any, line: str, why: str) -> None:
    with pytest.raises(TypeError, match=why) as error:
        trace_score(function)
    assert f"`{function.__name__}`" in str(error.value)
    assert line_of(function, line) in str(error.value)


def test_random_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match=r"without random numbers.*`draws`"):
        trace_score(draws)


@pytest.mark.parametrize(
    ("run", "error", "text"),
    [
        (lambda: trace_score(3), TypeError, r"`score_mod` must be a function of \(score, batch"),
        (
            lambda: trace_score(lambda s, b, h, q: s),
            TypeError,
            r"with the arguments \(s, b, h, q\)",
        ),
        (
            lambda: trace_mask(lambda s, b, h, q, k: s),
            TypeError,
            r"`mask` must be a function of \(batch",
        ),
        (lambda: trace_score(lambda s, b, h, q, k: None), ValueError, "Received: NoneType"),
        (lambda: trace_score(lambda s, b, h, q, k: q > k), ValueError, "Received: a boolean"),
        (lambda: trace_score(lambda s, b, h, q, k: q - k), ValueError, "Received: an integer"),
        (lambda: trace_mask(lambda b, h, q, k: q / 2), ValueError, "Received: a float"),
        (lambda: trace_score(lambda s, b, h, q, k: (s, s)), ValueError, "Received: tuple"),
        (
            lambda: trace_score(lambda s, b, h, q, k: s + EMPTY[k]),
            TypeError,
            "nothing to take from",
        ),
        (
            lambda: trace_score(lambda s, b, h, q, k: s[0]),
            TypeError,
            "no array|too many|many indices",
        ),
        (
            lambda: trace_score(lambda s, b, h, q, k: s + TABLE[0][s]),
            TypeError,
            "an index must be an integer",
        ),
        (
            lambda: trace_score(lambda s, b, h, q, k: s + 2**40 * q),
            TypeError,
            "none of int32|int32",
        ),
    ],
)
def test_bad_functions_are_refused(run: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        run()


def test_operations_that_do_nothing_for_known_lengths_go() -> None:
    from heed.ops.score_mod.rewriting import specialize

    program = trace_score(lambda s, b, h, q, k: s + ops.take(TABLE[0], k - q + 5)).program
    short = specialize(program, programs.place())
    names = [x.name for x in short.instructions]
    assert names == ["SCORE", "QUERY", "KEY", "SUB", "CONSTANT", "ADD", "LOAD", "ADD"]
    assert "MAX" in [x.name for x in program.instructions]
