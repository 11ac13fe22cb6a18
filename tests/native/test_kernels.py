"""Ways through the kernels that shapes, strides and numbers choose: each means the same, on each instruction set."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.native import core, fuzz, fuzz_problems
from tests.native.core import DENSE, LENGTHS, LIBRARY, PREFIX, SEGMENTS, WINDOW
from tests.slow import slow

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="installed without the native library")
# Around the bounds of few queries, of vectors and of tiles.
QUERIES = (1, 4, 5, 8, 15, 16, 17, 64, 70)


def tensors(
    queries: int, keys: int, *, heads: int = 2, kv_heads: int = 1, dtype: Any = np.float32
) -> list[np.ndarray]:
    """Return query, key, value and the gradient of the output."""
    rng = np.random.default_rng(queries * 1000 + keys)
    shapes = [(2, queries, heads, 20), (2, keys, kv_heads, 20), (2, keys, kv_heads, 24)]
    shapes.append((2, queries, heads, 24))
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def assert_reference(library: Any, arrays: list[np.ndarray], **options: Any) -> None:
    """Check that forward and backward are the reference's."""
    problem = fuzz_problems.made(arrays, **options)
    fuzz.check_passes(core.Call(library, *arrays[:3], **problem.options), problem)


# Which axes of (B, N, T, S) a mask or a bias has.
AXES = ("BNTS", "BNT", "BS", "TS", "T", "S", "N", "")


KEYS = (7, 64, 131)
SHAPES = [*product(AXES, QUERIES, KEYS)]
# Each axis, each number of queries, and each of keys with some of the others.
SOME = [(AXES[i % 8], QUERIES[i % 9], KEYS[i % 3]) for i in range(18)]
CASES = [*SOME, *slow(x for x in SHAPES if x not in SOME)]


def shape_of(axes: str, queries: int, keys: int) -> list[int]:
    sizes = zip("BNTS", (2, 2, queries, keys), strict=True)
    return [n if axis in axes else 1 for axis, n in sizes]


@pytest.mark.parametrize(("axes", "queries", "keys"), CASES)
def test_dense_masks_of_every_shape(library, axes: str, queries: int, keys: int) -> None:
    rng = np.random.default_rng(queries + keys)
    shape = shape_of(axes, queries, keys)
    # Any number but 0 means "attend".
    mask = rng.integers(1, 256, shape) * (rng.random(shape) < 0.6)
    arrays = tensors(queries, keys)
    assert_reference(library, arrays, rules=[{"rule": DENSE, "dense": mask}], mask=mask != 0)


@pytest.mark.parametrize("dtype", [np.float32, *slow([np.float64])])
@pytest.mark.parametrize(("axes", "queries", "keys"), CASES)
def test_biases_of_every_shape(library, axes: str, queries: int, keys: int, dtype: Any) -> None:
    rng = np.random.default_rng(queries)
    bias = rng.normal(size=shape_of(axes, queries, keys)).astype(dtype)
    bias[rng.random(bias.shape) < 0.2] = -1e30
    assert_reference(library, tensors(queries, keys, dtype=dtype), bias=bias)


@pytest.mark.parametrize("soft_cap", [0.01, 1.0, 30.0])
def test_soft_caps(library, soft_cap: float) -> None:
    query, key, value, d_out = tensors(20, 131)
    for scale in (0.01, 1.0, 100.0):  # far below the cap, about it, far above
        assert_reference(library, [query * np.float32(scale), key, value, d_out], soft_cap=soft_cap)


@pytest.mark.parametrize("queries", [1, 3, 16, 70])
@pytest.mark.parametrize("what", ["key", "value"])
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_reaches_who_sees_it(
    library, queries: int, what: str, number: float
) -> None:
    """Also where all that comes of it looks like an ordinary number: a score of minus infinity, a weight of 0."""
    query, key, value, _ = tensors(queries, 140)
    query[..., 3] = (
        np.abs(query[..., 3]) + 0.1
    )  # one sign: a key of -inf there has the score -inf for all
    hidden = 9
    mask = np.ones((2, 1, 1, 140), bool)
    mask[1, ..., hidden] = False
    bias = np.zeros((1, 1, 1, 140), np.float32)
    bias[..., hidden] = -200  # a weight that float32 does not hold
    clean = core.Call(library, query, key, value, rules=[{"rule": DENSE, "dense": mask}], bias=bias)
    expected, lse = clean.forward()
    {"key": key, "value": value}[what][:, hidden, 0, 3] = number
    call = core.Call(library, query, key, value, rules=[{"rule": DENSE, "dense": mask}], bias=bias)
    output, found_lse = call.forward()
    np.testing.assert_array_equal(
        output[1], expected[1]
    )  # where it is hidden nothing changes by a bit
    np.testing.assert_array_equal(found_lse[1], lse[1])
    assert np.isnan(output[0]).all()
    assert np.isnan(found_lse[0]).all()


def test_what_is_not_finite_beyond_all_keys_that_are_seen(library) -> None:
    rules = [{"rule": LENGTHS, "first": [100, 3]}]
    for queries in (1, 70):
        query, key, value, _ = tensors(queries, 140)
        expected, _ = core.Call(library, query, key, value, rules=rules).forward()
        key[0, 100:], value[1, 3:] = np.nan, np.inf
        output, _ = core.Call(library, query, key, value, rules=rules).forward()
        np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize("length", [60, 200])
@pytest.mark.parametrize("what", ["key", "value"])
def test_what_is_not_finite_inside_a_tile_on_the_diagonal(library, length: int, what: str) -> None:
    """The products of the tile's first queries leave it out; those of its last ones read it."""
    query, key, value, _ = tensors(length, length)
    query[..., 3] = np.abs(query[..., 3]) + 0.1
    causal = [{"rule": WINDOW, "right": 0}]
    expected, _ = core.Call(library, query, key, value, rules=causal).forward()
    at = length - 10
    {"key": key, "value": value}[what][:, at, 0, 3] = -np.inf
    output, _ = core.Call(library, query, key, value, rules=causal).forward()
    np.testing.assert_array_equal(output[:, :at], expected[:, :at])
    assert np.isnan(output[:, at:]).all()


@pytest.mark.parametrize("rule", [WINDOW, PREFIX, SEGMENTS])
@pytest.mark.parametrize("queries", [5, 64, 65, 130])
def test_rules_at_the_edges_of_tiles(library, rule: int, queries: int) -> None:
    keys = 131
    arrays = tensors(queries, keys)
    i, j = np.arange(queries)[:, None], np.arange(keys)[None]
    if rule == WINDOW:
        given, mask = {"left": 63, "right": 0}, (j <= i) & (j >= i - 63)
    elif rule == PREFIX:
        given, mask = {"first": [65, 65]}, (j < 65) | (j <= i)
    else:
        first, second = np.arange(queries) // 64, np.arange(keys) // 63
        given, mask = {"first": first[None], "second": second[None]}, first[:, None] == second
    assert_reference(library, arrays, rules=[{"rule": rule, **given}], mask=mask[None, None])


def test_float16_to_the_last_bit(library) -> None:
    """Every number that float16 holds passes unchanged, and sums are rounded to the nearest, ties to even."""
    everything = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    value = everything.reshape(1024, 1, 1, 64)
    query = np.zeros((1024, 1, 1, 8), np.float16)
    output, _ = core.Call(library, query, query, value).forward()
    number = ~np.isnan(everything)
    np.testing.assert_array_equal(np.isnan(output.ravel()), ~number)
    np.testing.assert_array_equal(output.ravel()[number], everything[number])

    other = np.random.default_rng(0).permutation(everything)
    pair = np.stack([everything.reshape(1024, 64), other.reshape(1024, 64)], 1)[:, :, None]
    output, _ = core.Call(library, query, query.repeat(2, 1), pair).forward()
    with np.errstate(all="ignore"):
        mean = ((everything.astype(np.float64) + other) / 2).astype(np.float16)
    finite = np.isfinite(everything) & np.isfinite(other)
    np.testing.assert_array_equal(output.ravel()[finite], mean[finite])
