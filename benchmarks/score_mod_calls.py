"""Five functions of the score on Keras' backend, each against the peers that this framework has."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import keras
import numpy as np
from keras import ops

from benchmarks.gpu_device import make_step, to_device
from benchmarks.results import Row
from benchmarks.turns import SMALLER, alternate, attempt, bar, seconds_of
from benchmarks.worker import peak_memory, resident_memory
from heed import Mask
from heed.ops import dot_product_attention

_PART = SMALLER or 1  # of a length
_SHAPE = _BATCH, _HEADS, _LENGTH, _WIDTH = 2, 8, 2048 // _PART, 64
_LONG = 1, _HEADS, 16384 // _PART, _WIDTH
_PASSES = {False: "fwd", True: "fwd+bwd"}
_DENSE = {"jax": ("JAX: jitted dense", 3.0), "tensorflow": ("TensorFlow: dense tf.function", 2.5)}
_LN2, _CAP = math.log(2), 20.0
# Seconds of the rounds of a comparison: all of them together stay within 9 minutes.
_BUDGET = 8.0
# The largest difference of two results, relative to the largest value: a wrong index is far above.
_TOLERANCE = 1e-3


class Function(NamedTuple):
    """A function of the score."""

    captured: tuple[np.ndarray, ...]  # which get gradients
    # From the namespace of its operations and the captured arrays, a function of a pair; or None for none.
    make: Callable[..., Any]
    dense: Callable[..., Any]  # the same of all scores, from the scores and the captured arrays
    options: Callable[..., dict[str, Any]] | None = None  # heed's own way to say it
    bar: float | None = 1.1  # of the cost against that


def _alibi(m: Any) -> Any:
    return lambda s, b, h, q, k: s - m.exp(-_LN2 * (h + 1)) * abs(q - k)


def _dense_alibi(scores: Any) -> Any:
    slopes = ops.exp(-_LN2 * (ops.arange(_HEADS, dtype="float32") + 1))
    return scores - slopes[:, None, None] * ops.cast(ops.abs(_distances()), "float32")


def _cap(m: Any) -> Any:
    return lambda s, b, h, q, k: _CAP * m.tanh(s / _CAP)


def _table(m: Any, table: Any) -> Any:
    return lambda s, b, h, q, k: s + table[h, k - q + _LENGTH - 1]


def _bias(m: Any, bias: Any) -> Any:
    return lambda s, b, h, q, k: s + bias[h, q, k]


def _forgetting(m: Any, gates: Any) -> Any:
    kept = m.cumsum(gates, -1)
    return lambda s, b, h, q, k: s + kept[b, h, q] - kept[b, h, k]


def _dense_forgetting(scores: Any, gates: Any) -> Any:
    kept = ops.cumsum(gates, -1)
    return scores + kept[..., :, None] - kept[..., None, :]


def _distances() -> Any:
    place = ops.arange(_LENGTH, dtype="int32")
    return place - place[:, None]


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, "float32")


FUNCTIONS = {
    "ALiBi by formula": Function(
        (),
        _alibi,
        _dense_alibi,
        lambda: {"alibi_slopes": to_device(0.5 ** np.arange(1, _HEADS + 1, dtype="float32"))},
    ),
    "tanh cap": Function((), _cap, lambda s: _CAP * ops.tanh(s / _CAP), lambda: {"soft_cap": _CAP}),
    "table by distance": Function(
        (_normal(_HEADS, 2 * _LENGTH - 1),),
        _table,
        lambda s, table: s + ops.take(table, _distances() + _LENGTH - 1, axis=1),
    ),
    "pair bias": Function(
        (_normal(_HEADS, _LENGTH, _LENGTH),),
        _bias,
        lambda s, bias: s + bias,
        lambda bias: {"bias": bias[None]},
        bar=None,
    ),
    "forgetting gate": Function(
        (-0.01 * abs(_normal(_BATCH, _HEADS, _LENGTH)),), _forgetting, _dense_forgetting
    ),
}


# What a dense peer's own speed is, beside what a function costs.
_NONE = Function((), lambda m: None, lambda scores: scores)


def _heed(*x: Any, **options: Any) -> Any:
    return dot_product_attention(*x, layout="BNTH", **options)


def _tensors(shape: tuple[int, ...]) -> list[Any]:
    return [to_device(x) for x in np.random.default_rng(0).standard_normal((3, *shape), "float32")]


def _row(name: str, value: float, most: float | None, ours: float, peer: str, **more: Any) -> Row:
    return Row(
        f"{name} {_SHAPE}",
        value,
        most and bar(most),
        note=f"heed {ours * 1e3:.3g} ms, {peer}",
        **more,
    )


def _check(heed: Callable[[], Any], peer: Callable[[], Any]) -> None:
    for place, pair in enumerate(zip(heed(), peer(), strict=True)):
        x, y = map(ops.convert_to_numpy, pair)
        if not np.max(np.abs(x - y)) <= _TOLERANCE * np.max(np.abs(y)):
            raise ArithmeticError(f"result {place} differs from the peer's")


def measure_torch(rounds: int) -> Iterator[Row | str]:
    """Yield each function against FlexAttention, and against heed without it and by its own option."""
    with tempfile.TemporaryDirectory() as folder:  # torch.compile finds no code of earlier runs
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for name, function in FUNCTIONS.items():
            for backward in _PASSES:
                what = f"PyTorch: {name} {_PASSES[backward]}"
                yield from attempt(what, _compare_torch(what, function, backward, rounds))


def _compare_torch(
    name: str, function: Function, backward: bool, rounds: int
) -> Iterator[Row | str]:
    import torch
    from torch.nn.attention import flex_attention as flex

    x, captured = _tensors(_SHAPE), [to_device(y) for y in function.captured]
    upstream = to_device(_normal(*_SHAPE)) if backward else None
    flexible = flex.flex_attention if backward else torch.compile(flex.flex_attention)

    def step(attend: Callable[..., Any], options: Callable[..., dict[str, Any]]) -> Any:
        if backward:  # the options are made anew from the arrays of the step
            return make_step(
                lambda q, k, v, *c: attend(q, k, v, **options(*c)), [*x, *captured], upstream
            )
        made = options(*captured)
        return make_step(lambda *y: attend(*y, **made), x)

    sides = {
        "heed": step(_heed, lambda *c: {"score_mod": function.make(ops, *c)}),
        "flex": step(flexible, lambda *c: {"score_mod": function.make(torch, *c)}),
        "plain": make_step(_heed, x, upstream),
    }
    if function.options is not None:
        sides["option"] = step(_heed, function.options)
    # FlexAttention can compute gradients on CPUs, but refuses to.
    # torch.compile could not trace a mock.
    with mock.patch.object(flex, "_validate_device", lambda *_: None):  # noqa: PT008
        first = {"heed": seconds_of(sides["heed"])}
        try:
            first["flex"] = seconds_of(sides["flex"])
        except Exception as error:  # its compiler's
            yield f"{name}, FlexAttention: {type(error).__name__}: {error}"[:300]
            del sides["flex"]
        else:
            _check(sides["heed"], sides["flex"])
        found = alternate(*sides.values(), rounds=rounds, budget=_BUDGET)
    times = dict(zip(sides, found, strict=True))
    ours = times["heed"]
    if peer := times.get("flex"):
        title = "uncompiled FlexAttention" if backward else "torch.compile(flex_attention)"
        note, least = f"peer {peer * 1e3:.3g} ms", 3.0 if backward else 1.2
        yield _row(f"{name}, {title}", peer / ours, least, ours, note, unit="times")
    if not backward:
        note = f"whole first call {first['heed']:.3g} s"
        if "flex" in first:
            note += f", that of torch.compile {first['flex']:.3g} s"
        more = first["heed"] - ours
        yield _row(
            f"{name}, first call beyond a warm one", more, 0.1, ours, note, at_most=True, unit="s"
        )
    for side, title, most in (
        ("plain", "heed without it", 1.35 if backward else 1.25),
        ("option", "heed's option", function.bar),
    ):
        if side in times:
            note = f"{title} {times[side] * 1e3:.3g} ms"
            cost = ours / times[side]
            yield _row(f"{name}, cost against {title}", cost, most, ours, note, at_most=True)


def measure_dense(rounds: int) -> Iterator[Row | str]:
    """No function, then each function, with gradients against the framework's dense attention."""
    yield from attempt("no function", _compare_dense("no function", _NONE, rounds, has_bar=False))
    for name, function in FUNCTIONS.items():
        yield from attempt(name, _compare_dense(name, function, rounds))


def _compare_dense(
    name: str, function: Function, rounds: int, *, has_bar: bool = True
) -> Iterator[Row]:
    title, least = _DENSE[keras.config.backend()]
    tensors = [*_tensors(_SHAPE), *map(to_device, function.captured)]
    upstream = to_device(_normal(*_SHAPE))
    heed, peer = (make_step(side, tensors, upstream) for side in _heed_and_dense(function))
    _check(heed, peer)
    mine, other = alternate(heed, peer, rounds=rounds, budget=_BUDGET)
    note = f"peer {other * 1e3:.3g} ms"
    yield _row(
        f"{title}, {name} fwd+bwd",
        other / mine,
        least if has_bar else None,
        mine,
        note,
        unit="times",
    )


def _heed_and_dense(function: Function) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def ours(q: Any, k: Any, v: Any, *captured: Any) -> Any:
        return _heed(q, k, v, score_mod=function.make(ops, *captured))

    def theirs(q: Any, k: Any, v: Any, *captured: Any) -> Any:
        scores = ops.matmul(q, ops.swapaxes(k, -1, -2)) * _WIDTH**-0.5
        return ops.matmul(ops.softmax(function.dense(scores, *captured)), v)

    return ours, theirs


def measure_memory(rounds: int) -> Iterator[Row]:
    """Yield the memory of a step with the tanh cap, results included, as a share of the dense one's.

    heed's comes first: the other one can only reuse what it leaves.
    """
    shape, peaks = (_BATCH, _HEADS, 2 * _LENGTH, _WIDTH), []
    for attend in _heed_and_dense(FUNCTIONS["tanh cap"]):
        for size in ((*shape[:2], 32, _WIDTH), shape):  # the first loads libraries, starts threads
            step = make_step(attend, _tensors(size), to_device(_normal(*size)))
            before = resident_memory()
            step()
        peaks.append(peak_memory() - before)
    heed, dense = peaks
    name = f"{_DENSE['jax'][0]}, memory of tanh cap fwd+bwd {shape}, share of the peer's"
    note = f"heed {heed:.3g} MiB, peer {dense:.3g} MiB"
    yield Row(name, heed / dense, bar(0.1), at_most=True, note=note)


def measure_profile(rounds: int) -> Iterator[Row]:
    """Time what parts of a function cost, all of them in turn: the shares of heed's time without it.

    A backward pass runs the function again, and then its derivative, which computes what it needs of the function anew.
    """
    x, upstream = _tensors(_SHAPE), to_device(_normal(*_SHAPE))
    (array,) = FUNCTIONS["pair bias"].captured
    bias, other = to_device(array), to_device(array)
    per_query = to_device(_normal(_HEADS, _LENGTH))
    functions = {
        "one operation (score * score)": lambda: lambda s, b, h, q, k: s * s,
        "tanh alone": lambda: lambda s, b, h, q, k: ops.tanh(s),
        "tanh cap": lambda: FUNCTIONS["tanh cap"].make(ops),
        "number of a query, without gradient": lambda: lambda s, b, h, q, k: s + per_query[h, q],
        "pair bias, without gradient": lambda: FUNCTIONS["pair bias"].make(ops, bias),
    }
    for backward, name in _PASSES.items():
        above = upstream if backward else None
        sides = {"": make_step(_heed, x, above)} | {
            title: make_step(lambda *y, f=function: _heed(*y, score_mod=f()), x, above)
            for title, function in functions.items()
        }
        if backward:
            sides["pair bias, with gradient"] = make_step(
                lambda q, k, v, c: _heed(q, k, v, score_mod=FUNCTIONS["pair bias"].make(ops, c)),
                [*x, bias],
                above,
            )
        else:
            sides["memory of a pair bias: a += b"] = lambda: other.add_(bias)
        found = alternate(*sides.values(), rounds=rounds, budget=3 * _BUDGET)
        times = dict(zip(sides, found, strict=True))
        plain = times.pop("")
        for title, seconds in times.items():
            note = f"{seconds * 1e3:.3g} ms, heed without a function {plain * 1e3:.3g} ms"
            yield Row(f"profile: {title}, {name} {_SHAPE}", seconds / plain, note=note)


def measure_window(rounds: int) -> Iterator[Row]:
    """Time a causal window as a function and as `Mask.window`, and one that leaves next to nothing to compute."""
    x = _tensors(_LONG)
    last = _LONG[2] - 1
    masks = (Mask.where(lambda b, h, q, k: (k <= q) & (q - k < 256)), Mask.window(255, 0))
    for backward, name in _PASSES.items():
        upstream = to_device(_normal(*_LONG)) if backward else None
        ours, peer = (
            make_step(lambda *y, mask=mask: _heed(*y, mask=mask), x, upstream) for mask in masks
        )
        _check(ours, peer)
        mine, other = alternate(ours, peer, rounds=rounds, budget=_BUDGET)
        note = f"heed {mine * 1e3:.3g} ms, Mask.window {other * 1e3:.3g} ms"
        title = f"causal window 256 as a function, {name} {_LONG}, cost against Mask.window"
        yield Row(title, mine / other, bar(1.15), at_most=True, note=note)
        if backward:
            continue
        # Next to nothing is computed in both calls: what a function takes longer is the verdicts of all blocks.
        nothing = Mask.lengths(to_device(np.zeros(1, "int32")))
        judged, unjudged = alternate(
            *(
                make_step(lambda *y, mask=mask: _heed(*y, mask=mask), x)
                for mask in (Mask.where(lambda b, h, q, k: k - q == last), nothing)
            ),
            rounds=rounds,
            budget=_BUDGET,
        )
        title = f"judging all blocks of {_LONG} by a function, share of Mask.window's forward pass"
        note = (
            f"{judged * 1e3:.3g} ms with the verdicts and {unjudged * 1e3:.3g} ms without, "
            f"Mask.window {other * 1e3:.3g} ms"
        )
        yield Row(title, (judged - unjudged) / other, bar(0.05), at_most=True, note=note)
