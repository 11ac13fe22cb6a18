"""Single attentions on a GPU: `heed.ops` against `keras.ops.dot_product_attention` with an array as mask."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from benchmarks.gpu_device import (
    TITLE,
    has_gpu,
    make_step,
    measure_peak,
    time_parts,
    to_device,
    to_host,
)
from benchmarks.results import Row
from benchmarks.turns import attempt, ratio
from heed import Mask, explain_dispatch, ops

# The largest difference of the two results, relative to the largest value: a wrong mask is far above.
_TOLERANCE = 4e-2
# Seconds of timing for a row: one that is slow by mistake must not cost the others their turn.
_BUDGET = 3.0
# The same for what a row compiles.
ROW_SECONDS = 40.0


@dataclass(frozen=True)
class Case:
    """An attention."""

    name: str
    shape: tuple[int, int, int, int, int]  # B, T, N, K, H
    ours: Callable[[int], dict[str, Any]]  # heed's options for a length
    theirs: Callable[[int], dict[str, Any]]  # Keras' options
    bars: dict[str, float | None]  # by backend that measures it; None for a row without one


def _distance(length: int) -> np.ndarray:
    place = np.arange(length, dtype="int32")
    return place[:, None] - place


def _ids(length: int) -> np.ndarray:
    return (np.arange(length) // (length // 8)).astype("int32")


def _window(length: int) -> np.ndarray:
    distance = _distance(length)
    return ((distance >= 0) & (distance < length // 8))[None, None]


def _documents(length: int) -> np.ndarray:
    ids = _ids(length)
    return ((ids[:, None] == ids) & (_distance(length) >= 0))[None, None]


def _padding(length: int) -> np.ndarray:
    visible = (np.arange(length) < length // 2)[None, None, None]
    if keras.config.backend() == "jax":  # whose cuDNN call takes no mask of one row
        return np.broadcast_to(visible, (8, 1, length, length))
    return np.broadcast_to(visible, (8, 1, 1, length))


CASES = (
    Case(
        "causal window of T/8",
        (1, 8192, 16, 16, 128),
        lambda n: {"mask": Mask.window(n // 8 - 1, 0)},
        lambda n: {"mask": _window(n)},
        {"torch": 3.0, "jax": 3.0},
    ),
    Case(
        "8 documents, causal",
        (1, 8192, 16, 16, 128),
        lambda n: {"mask": Mask.causal() & Mask.segments(_ids(n)[None])},
        lambda n: {"mask": _documents(n)},
        {"torch": 3.0},
    ),
    Case(
        "padding to half",
        (8, 4096, 16, 16, 64),
        lambda n: {"mask": Mask.lengths(np.full(8, n // 2, "int32"))},
        lambda n: {"mask": _padding(n)},
        {"torch": 1.5, "jax": 2.0},
    ),
    Case(
        "grouped heads 8 to 1, causal",
        (2, 4096, 32, 4, 128),
        lambda _: {"is_causal": True},
        lambda _: {"is_causal": True},
        {"torch": 1.2},
    ),
    Case(
        "causal",
        (2, 4096, 16, 16, 128),
        lambda _: {"is_causal": True},
        lambda _: {"is_causal": True},
        {"torch": None, "jax": None},
    ),
)


def measure(rounds: int) -> Iterator[Row | str]:
    """Yield the rows of times of the backend's cases, and of memory of grouped heads."""
    backend = keras.config.backend()
    # Time may end: each case forward first, as what compiles backward takes half a minute.
    for backward in (False, True):
        for case in CASES:
            if backend in case.bars:
                rows = _compare(case, backward, rounds)
                yield from attempt(_title(case, backward), rows, ROW_SECONDS)
    if backend == "torch":
        yield from attempt("memory of grouped heads", _measure_memory(CASES[3]), ROW_SECONDS)


def _sizes(case: Case) -> tuple[int, int, int, int, int]:
    if has_gpu():
        return case.shape
    batch, length, heads, kv_heads, width = case.shape
    return batch, length // 64, heads // 4, kv_heads // 4, width // 4


def _title(case: Case, backward: bool) -> str:
    return f"{TITLE}: {case.name}, fwd{'+bwd' * backward} {_sizes(case)}"


def _draw(case: Case) -> list[Any]:
    batch, length, heads, kv_heads, width = _sizes(case)
    rng = np.random.default_rng(0)
    shapes = [(batch, length, heads, width), *[(batch, length, kv_heads, width)] * 2]
    shapes.append(shapes[0])
    made = (rng.standard_normal(shape, "float32") for shape in shapes)
    return [to_device(x, "bfloat16") for x in made]


def _steps(case: Case, backward: bool) -> tuple[list[Callable[[], Any]], str]:
    """Return a step of heed and one of Keras, and the implementation that heed runs."""
    *tensors, upstream = _draw(case)
    incoming = upstream if backward else None
    ours, theirs = _options(case)
    mask = theirs.pop("mask", None)
    extra = [] if mask is None else [to_device(mask)]

    def stock(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        return keras.ops.dot_product_attention(query, key, value, mask=mask, **theirs)

    heed = functools.partial(ops.dot_product_attention, **ours)
    steps = [make_step(heed, tensors, incoming), make_step(stock, tensors, incoming, extra)]
    return steps, explain_dispatch(*tensors, **ours).implementation


def _options(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    length = _sizes(case)[1]
    return case.ours(length), case.theirs(length)


def _compare(case: Case, backward: bool, rounds: int) -> Iterator[Row]:
    (heed, stock), ran = _steps(case, backward)
    gaps = []
    for one, other in zip(heed(), stock(), strict=True):
        x, y = to_host(one), to_host(other)
        gaps.append(float(np.max(np.abs(x - y)) / np.max(np.abs(y))))
    if not max(gaps) <= _TOLERANCE:
        raise ArithmeticError(f"the results differ by {max(gaps):.3g} of the largest value")
    bar = case.bars.get(keras.config.backend()) if has_gpu() else None
    yield ratio(
        _title(case, backward),
        heed,
        stock,
        bar,
        rounds,
        quartile=2,
        budget=_BUDGET,
        note=f"heed ran {ran}",
    )
    if keras.config.backend() == "torch":
        yield from _time_parts(_title(case, backward), {"heed": heed, "peer": stock})


def _time_parts(title: str, steps: dict[str, Callable[..., Any]]) -> Iterator[Row]:
    """Yield what a time consists of, where there is a GPU."""
    for name, step in steps.items():
        if (parts := time_parts(step)) is not None:
            in_python, on_gpu = (1e3 * seconds for seconds in parts)
            note = f"on the GPU alone {on_gpu:.3g} ms"
            yield Row(f"{title}, {name} in Python until launched", in_python, unit="ms", note=note)


def _measure_memory(case: Case) -> Iterator[Row]:
    """Yield the memory of a forward pass beyond inputs and output, where repeated keys and values would show."""
    *tensors, _ = _draw(case)
    sides = (ops.dot_product_attention, keras.ops.dot_product_attention)
    ours, theirs = (
        measure_peak(functools.partial(attend, **options), tensors)
        for attend, options in zip(sides, _options(case), strict=True)
    )
    if ours is None or theirs is None:
        return
    batch, length, heads, _, width = _sizes(case)
    repeated = 2 * 2 * batch * length * heads * width / 2**20
    name = f"{TITLE}: memory of {case.name}, fwd {_sizes(case)}"
    note = f"stock {theirs / 2**20:.3g} MiB; repeated keys and values take {repeated:.3g} MiB"
    bar = repeated / 2 if has_gpu() else None
    yield Row(name, ours / 2**20, bar, at_most=True, unit="MiB", note=note)
