"""Dropout: (seed, b, n, i, j) decides, forward, backward and in weights, for any block size."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed import ops
from tests import reference, strategies, tolerances
from tests.backend import on_tensorflow, tf
from tests.ops.harness import check_against_reference, keep_mask, share_of_examples, small_blocks
from tests.strategies import Shape

RATE = 0.3


def zeros(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    query, key, _ = shape.inputs(0, "float32")
    return np.zeros_like(query), np.zeros_like(key)


def draw_keep_mask(shape: Shape, seed: Any = 1, rate: float = RATE, **options: Any) -> np.ndarray:
    return keep_mask(*zeros(shape), seed=seed, dropout=rate, **options)


@share_of_examples(4)
@given(data=st.data())
def test_weights_tell_what_the_output_kept(implementation: str, data: st.DataObject) -> None:
    """Output and gradients are those of the weights that `attention_weights` returns."""
    block = data.draw(st.sampled_from(strategies.BLOCKS))
    shape, case, options = data.draw(strategies.problems(block=block))
    options |= {"dropout": RATE, "seed": data.draw(st.integers(0, 2**31 - 1))}
    check_against_reference(shape, case, options, block=block)


def test_one_seed_drops_the_same_weights_on_every_backend(implementation: str) -> None:
    """The weights that TensorFlow's portable form keeps, as bits."""
    shape = Shape(B=2, T=3, S=8, N=2, K=1)
    kept = {5: "775f99dbdffc9f9bfadb71eb", 2**33 + 5: "6fed9f71c9f6afd1b7d7bbc7"}
    seed: Any
    for seed, expected in kept.items():
        assert np.packbits(draw_keep_mask(shape, seed)).tobytes().hex() == expected
    wide = keras.ops.convert_to_tensor(np.int64(2**33 + 5))
    words = keras.ops.convert_to_tensor(np.array([5, 2], np.int32))
    for seed in (wide, words):
        assert np.packbits(draw_keep_mask(shape, seed)).tobytes().hex() == kept[2**33 + 5]
    for seed in (keras.ops.convert_to_tensor(5, "int32"), keras.ops.convert_to_tensor([5, 0])):
        np.testing.assert_array_equal(draw_keep_mask(shape, seed), draw_keep_mask(shape, 5))
    generator = keras.random.SeedGenerator(1234)
    for seed in (-5, generator.next()):
        assert (draw_keep_mask(shape, seed) != draw_keep_mask(shape, 5)).any()


def test_weights_are_zero_or_divided_by_what_remains(implementation: str) -> None:
    shape = Shape(T=20, S=30)
    query, key, _ = shape.inputs(0)
    plain = np.asarray(ops.attention_weights(query, key))
    dropped = np.asarray(ops.attention_weights(query, key, dropout=RATE, seed=1))
    keep = draw_keep_mask(shape)
    assert not dropped[~keep].any()
    np.testing.assert_allclose(dropped[keep], plain[keep] / (1.0 - RATE), rtol=1e-12)


def test_the_same_for_any_block_size(implementation: str) -> None:
    shape = Shape(B=2, T=13, S=17, N=4, K=2)
    inputs = shape.inputs(0)
    expected_keep = draw_keep_mask(shape)
    expected = ops.dot_product_attention(*inputs, dropout=RATE, seed=1)
    for block in ((1, 1), (3, 5), (4, 4), (5, 16), (13, 17)):
        with small_blocks(block):
            np.testing.assert_array_equal(draw_keep_mask(shape), expected_keep)
            out = ops.dot_product_attention(*inputs, dropout=RATE, seed=1)
        np.testing.assert_allclose(out, expected, atol=1e-13)


def test_the_position_decides_and_nothing_else(implementation: str) -> None:
    """It does not depend on lengths, batch size, number of heads, mask, layout or dtype."""
    large = draw_keep_mask(Shape(B=3, T=40, S=50, N=4, K=2))
    for small in (
        Shape(B=1, T=40, S=50, N=4, K=2),
        Shape(B=3, T=7, S=50, N=4, K=2),
        Shape(B=3, T=40, S=9, N=4, K=2),
        Shape(B=3, T=40, S=50, N=2, K=2),
        Shape(B=2, T=3, S=5, N=3, K=1),
    ):
        part = large[: small.B, : small.N, : small.T, : small.S]
        np.testing.assert_array_equal(draw_keep_mask(small), part, err_msg=str(small))
    shape = Shape(B=3, T=40, S=50, N=4, K=4)
    query, key = zeros(shape)
    swapped = [np.swapaxes(x, 1, 2) for x in (query, key)]
    options: dict[str, Any] = {"dropout": RATE, "seed": 1}
    np.testing.assert_array_equal(keep_mask(*swapped, layout="BNTH", **options), large)
    for dtype in ("float64", "float16", "bfloat16"):
        cast = [strategies.cast(x, dtype) for x in (query, key)]
        np.testing.assert_array_equal(keep_mask(*cast, **options), large)
    causal = keep_mask(query, key, mask=ops.Mask.causal(), **options)
    np.testing.assert_array_equal(causal, large & np.tril(np.ones((40, 50), bool)))
    chosen = keep_mask(query, key, heads=[2, 0], rows=[5, 39], **options)
    np.testing.assert_array_equal(chosen, large[:, [2, 0]][:, :, [5, 39]])


@on_tensorflow
@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_same_when_traced_and_when_compiled(implementation: str, jit: bool) -> None:
    shape = Shape(T=9, S=11)
    query, key = zeros(shape)

    def weights(seed: tf.Tensor) -> tf.Tensor:
        return ops.attention_weights(query, key, dropout=RATE, seed=seed)

    expected = np.asarray(weights(tf.constant(5)))
    function = tf.function(weights, jit_compile=jit)
    np.testing.assert_array_equal(np.asarray(function(tf.constant(5))) > 0, expected > 0)


@on_tensorflow
def test_without_a_seed_each_call_draws_one(implementation: str) -> None:
    inputs = Shape(T=20, S=20).inputs(0)

    def run() -> tf.Tensor:
        return ops.dot_product_attention(*inputs, dropout=RATE)

    for function in (run, tf.function(run)):
        first, second = (np.asarray(function()) for _ in range(2))
        assert (first != second).any()


@pytest.mark.parametrize("rate", [0.05, 0.17, 0.5, 0.9])
def test_the_fraction_that_is_dropped(implementation: str, rate: float) -> None:
    """Over 2**18 places: 0.01 is ten standard deviations."""
    keep = draw_keep_mask(Shape(B=4, T=128, S=128, N=4, K=4, H=1, V=1), rate=rate)
    assert keep.size == 2**18
    assert abs((1.0 - keep.mean()) - rate) < 0.01
    for axis in range(4):
        others = tuple(a for a in range(4) if a != axis)
        spread = np.sqrt(rate * (1 - rate) / (keep.size / keep.shape[axis]))
        assert np.abs(keep.mean(axis=others) - (1 - rate)).max() < 6 * spread


def test_places_are_independent(implementation: str) -> None:
    """Neighbours in j, i, n, b, and the same place under the next seed, are not correlated."""
    shape = Shape(B=4, T=128, S=128, N=4, K=4, H=1, V=1)
    keep = draw_keep_mask(shape, rate=0.5).astype(np.float64) - 0.5
    limit = 5.0 / np.sqrt(keep.size)

    def correlation(a: np.ndarray, b: np.ndarray) -> float:
        return abs(float((a * b).mean())) * 4.0

    for axis in range(4):
        for distance in (1, 2):
            a = np.take(keep, range(distance, keep.shape[axis]), axis=axis)
            b = np.take(keep, range(keep.shape[axis] - distance), axis=axis)
            assert correlation(a, b) < 2 * limit, (axis, distance)
    assert correlation(keep, np.swapaxes(keep, 2, 3)) < 2 * limit
    for seed in (0, 2, 3, 257, 65537):
        other = draw_keep_mask(shape, seed=seed, rate=0.5).astype(np.float64) - 0.5
        assert correlation(keep, other) < limit, seed


def test_rates_at_the_ends(implementation: str) -> None:
    inputs = Shape(T=20, S=20).inputs(0)
    plain = ops.dot_product_attention(*inputs)
    np.testing.assert_array_equal(ops.dot_product_attention(*inputs, dropout=0.0, seed=3), plain)
    tiny = ops.dot_product_attention(*inputs, dropout=1e-6, seed=3)
    np.testing.assert_allclose(tiny, plain, atol=1e-5)
    keep = draw_keep_mask(Shape(T=64, S=64), rate=0.999)
    assert 0 < keep.mean() < 0.01


def test_additive_attention_drops_by_position_too(implementation: str) -> None:
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(2, 5, 4)), rng.normal(size=(2, 7, 4)), np.ones((2, 7, 3))
    vector = rng.normal(size=4)
    weights = ops.additive_attention_weights(query, key, vector, dropout=RATE, seed=1)
    keep = np.asarray(weights) > 0
    np.testing.assert_array_equal(keep, draw_keep_mask(Shape(B=2, T=5, S=7, N=1, K=1))[:, 0])
    for block in ((2, 3), (5, 7)):
        with small_blocks(block):
            out = ops.additive_attention(query, key, value, vector, dropout=RATE, seed=1)
        expected = reference.additive_attention(query, key, value, vector, keep=keep, dropout=RATE)
        tolerances.assert_values(out, expected.out, "float64")
