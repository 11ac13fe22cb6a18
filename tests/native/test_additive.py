"""Additive attention in the native core by itself, for each instruction set of this machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import reference
from tests.native import core, fuzz
from tests.native.core import DENSE, LENGTHS, LIBRARY, NO_LIMIT, WINDOW
from tests.slow import slow
from tests.tolerances import assert_gradients, assert_statistics, assert_values

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="installed without the native library")

NAMES = ("query", "key", "value", "score_vector", "bias")


@pytest.mark.parametrize("seed", [*range(30), *slow(range(30, 100))])
def test_random_calls_equal_the_reference(library, seed: int) -> None:
    """Nothing else is written to, and inputs stay as they were."""
    fuzz.legal(library, seed, **fuzz.ADDITIVE)


# One row against many keys, whose keys are shared out; many rows of one batch entry; none of something.
SPLITS = [(1, 1, 700), (1, 300, 40), (2, 150, 500), (1, 4, 1500), (1, 0, 5), (2, 3, 0), (0, 3, 4)]


@pytest.mark.parametrize(("batch", "queries", "keys"), SPLITS)
def test_work_that_is_split_equals_the_reference(
    library, batch: int, queries: int, keys: int
) -> None:
    lengths = np.full(batch, keys - keys // 8)
    mask = np.arange(keys) < keys - keys // 8
    tensors = normal((batch, queries, keys, 20, 7))
    assert_reference(library, tensors, [{"rule": LENGTHS, "first": lengths}], mask)


def assert_reference(library: Any, tensors: list[Any], rules: Any = (), mask: Any = None) -> None:
    """Check output and all gradients: exact to a few roundings, whatever the tanh is computed by."""
    *inputs, bias, d_out = tensors
    call = core.AdditiveCall(library, *inputs, bias, rules=rules)
    options = {"bias": bias, "mask": mask}
    output, lse = call.forward()
    gradients = call.backward(output, d_out)
    wanted = reference.additive_attention(*inputs, **options)
    backward = reference.additive_attention_backward(*inputs, d_out, **options)
    name = d_out.dtype.name
    assert_values(output, wanted.out, name)
    assert_statistics(lse, wanted.lse, name)
    for which, actual in zip(NAMES if bias is not None else NAMES[:4], gradients, strict=False):
        assert_gradients(actual, getattr(backward, which), name, which)


def normal(sizes: tuple[int, int, int, int, int], seed: int = 0) -> list[np.ndarray]:
    """Return query, key, value, score vector, bias, gradient of the output, of order 1, in float32."""
    batch, queries, keys, units, value_width = sizes
    shapes = (
        (batch, queries, units),
        (batch, keys, units),
        (batch, keys, value_width),
        (units,),
        (units,),
        (batch, queries, value_width),
    )
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(("batch", "queries", "keys"), [*SPLITS, (5, 70, 130)])
def test_threads_and_repeats_do_not_change_a_bit(
    library, batch: int, queries: int, keys: int
) -> None:
    tensors = normal((batch, queries, keys, 20, 7))
    call = core.AdditiveCall(library, *tensors[:5], dropout=0.25, seed=(1, 2))
    call.assert_same_bits(tensors[5])


def test_scores_too_many_to_keep_are_made_again(library) -> None:
    """To the bit: of eight batch entries they take 64 MiB, which are kept, of nine more."""
    tensors = normal((9, 256, 8192, 3, 2))
    rules = [{"rule": LENGTHS, "first": 8000}]
    results = []
    for batch in (8, 9):
        *heads, vector, bias, d_out = (x[:batch] if x.ndim == 3 else x for x in tensors)
        call = core.AdditiveCall(library, *heads, vector, bias, rules=rules, dropout=0.1)
        kept = call.softmax_size - 2 * batch * 256
        assert kept == (2**24 if batch == 8 else 0)
        output, _ = call.forward()
        results.append([output, *call.backward(output, d_out)[:3]])
    for few, many in zip(*results, strict=True):
        np.testing.assert_array_equal(many[:8], few)


def check_range(library: Any, query: np.ndarray, key: np.ndarray) -> None:
    """Check an attention of these queries and keys."""
    value, d_out = np.random.default_rng(1).normal(size=(2, *key.shape[:2], 3)).astype(query.dtype)
    vector = np.linspace(-1, 1, query.shape[2]).astype(query.dtype)
    assert_reference(library, [query, key, value, vector, None, d_out[:, : query.shape[1]]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "size", [1e-30, 1e-3, 0.3, 0.32, 2, 10.3, 10.5, 43, 44, 86, 87, 350, 1e4, 1e38]
)
def test_inputs_of_any_size(library, dtype: Any, size: float) -> None:
    """Below, at and beyond each bound at which the kernels compute tanh in another way."""
    rng = np.random.default_rng(0)
    query, key = (rng.uniform(-size, size, (1, 9, 5)).astype(dtype) for _ in range(2))
    query[0, :5] = key[0, :5] = size
    query[0, 5:7], key[0, 5:7] = size, -size
    check_range(library, query, key)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [3.0, 10.0, 60.0])
def test_large_queries_and_keys_that_cancel(library, dtype: Any, size: float) -> None:
    """tanh of a small difference of large numbers keeps the digits that the difference has."""
    rng = np.random.default_rng(0)
    query = (size + rng.integers(-8, 8, (1, 12, 6)) / 16).astype(dtype)
    key = (-size + rng.integers(-8, 8, (1, 20, 6)) / 16).astype(dtype)
    check_range(library, query, key)


def test_one_range_a_block(library) -> None:
    """Small, usual and huge keys in different blocks of one call; huge queries in one tile of several."""
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(1, 150, 6)), rng.normal(size=(1, 400, 6))
    query[:, :70] *= 0.01
    key[:, :100] *= 0.01
    key[:, 300:] *= 500
    query[:, 140:] *= 500
    check_range(library, query.astype(np.float32), key.astype(np.float32))


@pytest.mark.parametrize("infinity", [np.inf, -np.inf])
def test_infinite_queries_and_keys_saturate(library, infinity: float) -> None:
    """tanh(infinity) is 1: without a mask non-finite numbers are ordinary ones."""
    query, key, *_ = normal((1, 6, 11, 5, 3))
    query[0, 2, 1] = key[0, 4, 3] = infinity
    check_range(library, query, key)


def test_not_a_number_reaches_whoever_sees_it(library) -> None:
    tensors = normal((2, 7, 10, 5, 3))
    query, key, value, vector, bias, d_out = tensors
    query[0, 1, 2] = key[1, 3, 0] = np.nan
    output, lse = core.AdditiveCall(library, query, key, value, vector, bias).forward()
    nonfinite = np.zeros((2, 7), bool)
    nonfinite[0, 1] = nonfinite[1] = True
    np.testing.assert_array_equal(np.isnan(lse), nonfinite)
    np.testing.assert_array_equal(np.isnan(output).any(-1), nonfinite)
    np.testing.assert_array_equal(np.isnan(output).all(-1), nonfinite)

    rules = [
        {"rule": WINDOW, "left": NO_LIMIT, "right": 0}
    ]  # causal: key 3 is seen from query 3 on
    call = core.AdditiveCall(library, query, key, value, vector, bias, rules=rules)
    output, lse = call.forward()
    nonfinite[1, :3] = False
    np.testing.assert_array_equal(np.isnan(lse), nonfinite)
    np.testing.assert_array_equal(np.isnan(output).all(-1), nonfinite)
    d_query, d_key, d_value, d_vector, d_bias = call.backward(output, d_out)
    np.testing.assert_array_equal(np.isnan(d_query).any(-1), nonfinite)
    seen = np.zeros((2, 10), bool)  # by a nonfinite query
    seen[0, :2] = seen[1, :7] = True
    np.testing.assert_array_equal(np.isnan(d_key).any(-1), seen)
    np.testing.assert_array_equal(np.isnan(d_value).all(-1), seen)
    assert np.isfinite(d_vector).all()
    assert np.isnan(d_bias).all()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("where", [3, 200, 300, 450, 699])
def test_not_a_number_in_any_share_of_the_keys(library, where: int, masked: bool) -> None:
    """One task has the keys of some blocks, another those of the others."""
    query, key, value, vector, bias, d_out = normal((1, 3, 700, 5, 4))
    key[0, where, 2] = np.nan
    mask = np.ones((1, 1, 3, 700), bool)
    if masked:
        mask[:, :, 1, where] = False
    rules = [{"rule": DENSE, "dense": mask}] if masked else []
    call = core.AdditiveCall(library, query, key, value, vector, bias, rules=rules)
    output, lse = call.forward()
    sees = mask[0, 0, :, where]
    np.testing.assert_array_equal(np.isnan(lse[0]), sees)
    np.testing.assert_array_equal(np.isnan(output[0]).all(-1), sees)
    np.testing.assert_array_equal(np.isnan(call.backward(output, d_out)[0][0]).any(-1), sees)


def test_a_query_that_was_prepared_for_small_keys_meets_usual_ones(library) -> None:
    """Each kind of block wants its queries in another form; one task meets all of them, in any order."""
    query, key, *_ = normal((1, 20, 1600, 6, 3))
    query *= np.float32(0.2)
    key *= np.repeat([0.1, 0.1, 3, 3, 30, 30, 0.1, 0.1, 30, 30, 3, 3, 1], 128)[:1600, None]
    check_range(library, query, key.astype(np.float32))
