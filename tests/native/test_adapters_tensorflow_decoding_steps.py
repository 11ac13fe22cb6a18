"""The native ops of a decoding step in a graph: products of few rows, and writes into a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.native import core, rows
from tests.native.core import LIBRARY
from tests.native.fuzz import Guards
from tests.native.rows import draw
from tests.tolerances import assert_values, to_float64

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="installed without the native library")
# R, G, K, N
SHAPES = (
    (1, 1, 1, 1),
    (2, 1, 33, 40),
    (3, 3, 31, 7),
    (5, 1, 200, 193),
    (8, 2, 64, 65),
    (13, 1, 97, 400),
    (64, 1, 5, 16),
)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", core.DTYPES)
def test_a_product_is_that_of_its_definition(
    library: Any, guards: Guards, dtype: str, shape: tuple[int, ...], transposed: bool
) -> None:
    count, groups, inner, columns = shape
    x, bias = draw((count, inner), dtype, 0), draw((groups, columns), dtype, 1)
    weights = draw((groups, inner, columns), dtype, 2, inner**-0.5)
    expected = np.einsum("rk,gkn->rgn", to_float64(x), to_float64(weights))
    lying = np.ascontiguousarray(weights.swapaxes(1, 2)) if transposed else weights
    alone = rows.product(library, x, lying, transposed=transposed, make=guards)
    assert_values(alone, expected, dtype)
    added = rows.product(library, x, lying, bias, transposed=transposed, make=guards)
    assert_values(added, expected + to_float64(bias), dtype)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", core.DTYPES)
def test_a_row_has_the_same_bits_beside_any_others_and_for_any_number_of_threads(
    library: Any, dtype: str, transposed: bool
) -> None:
    x, weights = draw((17, 301), dtype, 0), draw((1, 301, 517), dtype, 1)
    weights = weights.reshape(1, 517, 301) if transposed else weights
    whole = rows.product(library, x, weights, transposed=transposed)
    for threads in (0, 1, 7):
        again = rows.product(library, x, weights, transposed=transposed, threads=threads)
        assert again.tobytes() == whole.tobytes()
    for r in range(17):
        alone = rows.product(library, x[r : r + 1], weights, transposed=transposed)
        assert alone.tobytes() == whole[r : r + 1].tobytes()


def write(
    cache: np.ndarray, update: np.ndarray, index: int, in_place: bool, make: rows.Make
) -> np.ndarray:
    library = core.load(LIBRARY)
    held, new = rows._placed(cache, make), rows._placed(update, make)
    size = int(np.prod(cache.shape[2:])) * cache.itemsize
    sizes = cache.shape[0], cache.shape[1], update.shape[1], size
    call = core.CacheWrite(*sizes, index, held.ctypes.data, new.ctypes.data)
    result = held if in_place else make(cache.shape, cache.dtype)
    problem = library.heed_cache_write(call, result.ctypes.data)
    assert problem is None, problem
    return result


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", [0, 1, 3, 6])
@pytest.mark.parametrize("index", [-(2**40), -1, 0, 2, 5, 6, 2**40])
def test_positions_are_written_where_they_fit(
    guards: Guards, index: int, count: int, in_place: bool
) -> None:
    cache, update = draw((2, 6, 15), "float32", 0), draw((2, count, 15), "float32", 1)
    expected, at = cache.copy(), min(max(index, 0), 6 - count)
    expected[:, at : at + count] = update
    np.testing.assert_array_equal(write(cache, update, index, in_place, guards), expected)


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        ("as many as fit", {"written": 7}),
        ("as many as fit", {"written": -1}),
        ("as many as fit", {"batch": -1}),
        ("at most 2", {"batch": 2**40, "length": 2**40}),
        ("`cache` is missing", {"cache": None}),
        ("`update` is missing", {"update": None}),
    ],
)
def test_a_write_refuses_what_it_cannot_do(match: str, changes: dict[str, Any]) -> None:
    library, x = core.load(LIBRARY), np.zeros((2, 6, 4), "f4")
    call = core.CacheWrite(2, 6, 1, 16, 0, x.ctypes.data, x.ctypes.data)
    for name, value in changes.items():
        setattr(call, name, value)
    problem = library.heed_cache_write(call, x.ctypes.data)
    assert problem is not None
    assert match in problem.decode()
