"""The functions of docs/score_mod.md, compared with float64 NumPy, gradients included."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from keras import ops

from heed import Mask
from heed.ops import dot_product_attention
from tests import tolerances
from tests.backend import vjp
from tests.tolerances import to_numpy

PAGE = Path(__file__).parents[3] / "docs" / "score_mod.md"
B, T, N, K, H = 2, 16, 4, 2, 8
RNG = np.random.default_rng(5)


@functools.cache
def gallery() -> dict[str, Callable[..., Any]]:
    """Return the functions of the page, by name."""
    names: dict[str, Any] = {"ops": ops, "Mask": Mask}
    text = PAGE.read_text()
    for block in re.findall(
        r"^```python\n(.*?)^```$", text[text.index("## Gallery") :], re.M | re.S
    ):
        if block.startswith("def "):
            exec(block, names)
    return names


class Case(NamedTuple):
    """One function of the page.

    Attributes:
        arrays: the arguments of the function: arrays of floats get gradients.
        formula: the modified score, or whether a pair counts, of arrays of all pairs and the same arguments.
        causal: whether a causal mask is added.
    """

    arrays: tuple[Any, ...]
    formula: Callable[..., Any]
    causal: bool = False


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype("float32")


def positive(*shape: int) -> np.ndarray:
    return RNG.uniform(0.2, 1, shape).astype("float32")


def fire(
    s: Any, b: Any, h: Any, q: Any, k: Any, first: Any, bias: Any, second: Any, threshold: int
) -> Any:
    x = np.log1p(abs(q - k)) / np.log1p(np.maximum(q, threshold))
    return s + sum(
        w * np.maximum(a * x + c, 0) for a, c, w in zip(first, bias, second, strict=True)
    )


def forgetting(s: Any, b: Any, h: Any, q: Any, k: Any, gates: Any) -> Any:
    kept = np.cumsum(gates, -1)
    return s + kept[b, h, q] - kept[b, h, k]


def windows(b: Any, h: Any, q: Any, k: Any, width: int, size: int, shift: int) -> Any:
    window = lambda x: ((x // width + shift) // size, (x % width + shift) // size)  # noqa: E731
    return np.logical_and(*(x == y for x, y in zip(window(q), window(k), strict=True)))


def diffusion(b: Any, h: Any, q: Any, k: Any, n: int, block: int) -> Any:
    visible = np.zeros((2 * n, 2 * n), bool)
    for i in range(2 * n):
        for j in range(2 * n):
            before = (j % n) // block < (i % n) // block
            same = (j % n) // block == (i % n) // block
            visible[i, j] = (same and (i < n) == (j < n)) or (before and j >= n)
    return visible[q, k]


IDS = np.sort(RNG.integers(0, 4, (B, T)), 1)
SCORES: dict[str, Case] = {
    "alibi": Case((positive(N),), lambda s, b, h, q, k, x: s - x[h] * abs(q - k)),
    "soft_cap": Case((2.0,), lambda s, b, h, q, k, cap: cap * np.tanh(s / cap)),
    "t5": Case(
        (normal(N, 6), RNG.integers(0, 6, 2 * T - 1)),
        lambda s, b, h, q, k, table, buckets: s + table[h, buckets[k - q + T - 1]],
    ),
    "kerple": Case(
        (positive(N), positive(N)),
        lambda s, b, h, q, k, x, y: s - x[h] * np.log1p(y[h] * abs(q - k)),
    ),
    "fire": Case((normal(5), normal(5), normal(5), 4), fire),
    "cosine": Case((normal(N),), lambda s, b, h, q, k, x: s * np.exp(x)[h]),
    "forgetting": Case((-positive(B, N, T),), forgetting, causal=True),
    "graph": Case(
        (normal(N, 5), RNG.integers(0, 5, (T, T))),
        lambda s, b, h, q, k, table, distances: s + table[h, distances[q, k]],
    ),
    "sinks": Case((normal(N),), lambda s, b, h, q, k, x: np.where(k == 0, x[h], s)),
}
MASKS: dict[str, Case] = {
    "prefix": Case((np.array([3, 9]),), lambda b, h, q, k, n: (k <= q) | (k < n[b])),
    "document": Case((IDS,), lambda b, h, q, k, x: x[b, q] == x[b, k]),
    "sliding": Case((5,), lambda b, h, q, k, w: (k <= q) & (q - k < w)),
    "dilated": Case((3,), lambda b, h, q, k, n: (q - k) % n == 0),
    "neighbourhood": Case(
        (4, 1),
        lambda b, h, q, k, w, r: (abs(q // w - k // w) <= r) & (abs(q % w - k % w) <= r),
    ),
    "shifted_windows": Case((4, 2, 1), windows),
    "tree": Case(
        (np.tril(RNG.integers(0, 2, (T, T)) > 0) | np.eye(T, dtype=bool),),
        lambda b, h, q, k, x: x[q, k],
    ),
    "block_diffusion": Case((T // 2, 2), diffusion),
}


def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    shapes = (B, T, N, H), (B, T, K, H), (B, T, K, H)
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


def pairs() -> list[np.ndarray]:
    sizes = (B, N, T, T)
    return [*np.meshgrid(*(np.arange(n) for n in sizes), indexing="ij", sparse=True)]


def expected(
    case: Case, is_score: bool, arrays: Sequence[Any], tensors: Sequence[Any]
) -> np.ndarray:
    """Return the output (B, T, N, H) in float64."""
    query, key, value = (np.asarray(x, np.float64) for x in tensors)
    key, value = (np.repeat(x, N // K, 2) for x in (key, value))
    scores = np.einsum("btnh,bsnh->bnts", query, key) / np.sqrt(H)
    visible: Any = np.tril(np.ones((T, T), bool)) if case.causal else True
    if is_score:
        scores = case.formula(scores, *pairs(), *arrays)
    else:
        visible = visible & case.formula(*pairs(), *arrays)
    logits = np.where(np.broadcast_to(visible, scores.shape), scores, -np.inf)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.einsum("bnts,bsnh->btnh", powers / powers.sum(-1, keepdims=True), value)


def is_trained(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind == "f"


@pytest.mark.parametrize("name", [*SCORES, *MASKS])
def test_a_function_of_the_gallery_is_its_formula(name: str) -> None:
    is_score = name in SCORES
    case = (SCORES if is_score else MASKS)[name]
    make, options = gallery()[name], {"is_causal": case.causal}
    upstream = np.random.default_rng(4).normal(size=(B, T, N, H)).astype("float32")
    trained = [*inputs(), *filter(is_trained, case.arrays)]

    def attend(query: Any, key: Any, value: Any, *others: Any) -> Any:
        rest = iter(others)
        made = make(*(next(rest) if is_trained(x) else x for x in case.arrays))
        given = {"score_mod": made} if is_score else {"mask": Mask.where(made)}
        return dot_product_attention(query, key, value, **given, **options)

    output, pull = vjp(attend, *trained)
    gradients = pull(upstream)
    wanted = expected(case, is_score, case.arrays, inputs())
    tolerances.assert_values(output, wanted, "float32")

    # Along a random direction of each array, by central differences in float64.
    rng, tolerance = np.random.default_rng(6), tolerances.GRADIENTS["float32"]
    for place, (x, gradient) in enumerate(zip(trained, gradients, strict=True)):
        direction = rng.normal(size=x.shape)

        def along(step: float, place: int = place, direction: Any = direction) -> float:
            moved = [y.astype(np.float64) for y in trained]
            moved[place] = moved[place] + step * direction
            rest = iter(moved[3:])
            given = [next(rest) if is_trained(y) else y for y in case.arrays]
            return float(np.sum(expected(case, is_score, given, moved[:3]) * upstream))

        slope = (along(1e-5) - along(-1e-5)) / 2e-5
        found = to_numpy(gradient).astype(np.float64)
        allowed = np.sum(np.abs(direction) * (tolerance.atol + tolerance.rtol * np.abs(found)))
        assert abs(np.sum(found * direction) - slope) <= allowed + 1e-6 * abs(slope), place


def test_every_function_of_the_page_is_tested() -> None:
    functions = {x for x, y in gallery().items() if callable(y) and getattr(y, "__code__", None)}
    assert functions - {"ops", "Mask"} == {*SCORES, *MASKS}
