"""NaN in the log-sum-exp, in its gradient and in hidden keys, on each implementation and block size."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest

import heed
from heed import ops
from tests.backend import vjp
from tests.ops.harness import FORMS, small_blocks


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Any:
    implementation, blocks = FORMS[request.param]
    with heed.set_implementation(implementation), small_blocks(blocks):
        yield request.param


def inputs() -> list[np.ndarray]:
    """Return query, key and value (1, 20, 2, 8)."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=(1, 20, 2, 8)).astype(np.float32) for _ in range(3)]


@pytest.mark.parametrize("what", [0, 1])
def test_the_log_sum_exp_of_a_row_that_sees_one(form: str, what: int) -> None:
    """Of a query (0), or of a key (1), under a causal mask."""
    arrays = inputs()
    arrays[what][0, 11, 1, 3] = np.nan
    output, lse = ops.dot_product_attention(*arrays, is_causal=True, return_lse=True)
    broken = np.zeros((2, 20), bool)
    broken[1] = np.arange(20) == 11 if what == 0 else np.arange(20) >= 11
    np.testing.assert_array_equal(np.isnan(lse[0]), broken)
    np.testing.assert_array_equal(np.isnan(output[0]).all(-1).T, broken)
    np.testing.assert_array_equal(np.isnan(output[0]).any(-1).T, broken)


def test_in_the_gradient_of_the_log_sum_exp(form: str) -> None:
    """It reaches the query of its row, and the keys that this row sees."""
    tensors = [keras.ops.convert_to_tensor(x) for x in inputs()]
    attend = functools.partial(ops.dot_product_attention, is_causal=True, return_lse=True)
    (output, _), pull = vjp(attend, *tensors)
    d_lse = np.ones((1, 2, 20), np.float32)
    d_lse[0, 1, 6] = np.nan
    d_query, d_key, d_value = map(np.asarray, pull([np.ones(output.shape, np.float32), d_lse]))
    row, seen = np.zeros((2, 20, 2), bool)
    row[6, 1], seen[:7, 1] = True, True
    np.testing.assert_array_equal(np.isnan(d_query[0]).all(-1), row)
    np.testing.assert_array_equal(np.isnan(d_query[0]).any(-1), row)
    np.testing.assert_array_equal(np.isnan(d_key[0]).all(-1), seen)
    np.testing.assert_array_equal(np.isnan(d_key[0]).any(-1), seen)
    assert not np.isnan(d_value[0, 7:]).any()


def test_a_query_of_one_head_reaches_the_gradients_of_the_keys_it_sees(form: str) -> None:
    """It only reaches keys of its own head; the gradients of the other head are unchanged."""
    arrays = inputs()

    def gradients() -> list[np.ndarray]:
        tensors = [keras.ops.convert_to_tensor(x) for x in arrays]
        _, pull = vjp(functools.partial(ops.dot_product_attention, is_causal=True), *tensors)
        return [np.asarray(x) for x in pull()]

    without = gradients()
    arrays[0][0, 6, 1, 2] = np.nan
    seen = np.zeros((20, 2), bool)
    seen[:7, 1] = True
    for got, wanted in zip(gradients()[1:], without[1:], strict=True):
        np.testing.assert_array_equal(np.isnan(got[0]).any(-1), seen)
        np.testing.assert_allclose(got[0, :, 0], wanted[0, :, 0], atol=1e-6)


@pytest.mark.parametrize("blocks", [(64, 512), (3, 4)])
def test_a_query_without_a_visible_key_has_statistics_of_zero(blocks: tuple[int, int]) -> None:
    query, key, _ = inputs()
    query[0, 4] = query[0, 9] = np.nan
    mask = np.ones((20, 20), bool)
    mask[4] = False
    with small_blocks(blocks):
        rows = ops.attention_statistics(query, key, mask=mask, keys=(0, 3))
    for x in rows:
        assert not np.asarray(x)[0, :, 4].any()
        assert np.isnan(np.asarray(x)[0, :, 9]).all()
    assert np.isfinite(np.delete(rows.entropy, [9], axis=2)).all()
