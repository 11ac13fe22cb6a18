"""Agrees with stock `keras.ops.dot_product_attention` where that is right, differs elsewhere.

Each documented difference has a test, which fails once stock Keras is fixed.
"""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed import ops
from heed.ops import Mask
from tests import reference, strategies, tolerances
from tests.backend import BACKEND, vjp
from tests.ops.harness import small_blocks
from tests.strategies import Shape

# On JAX stock takes only values as wide as keys, and has faults of its own.
V = 8 if BACKEND == "jax" else 6
SHAPE = Shape(B=2, T=5, S=7, N=4, K=2, H=8, V=V)
not_on_jax = pytest.mark.skipif(BACKEND == "jax", reason="is about stock Keras elsewhere")
stock = keras.ops.dot_product_attention


@given(data=st.data())
def test_agrees_on_random_input(implementation: str, data: st.DataObject) -> None:
    """Where every row has a key, and stock supports the arguments."""
    shape = data.draw(strategies.shapes((3, 4)))
    if shape.K == 1 and shape.N > 1:
        shape = Shape(shape.B, shape.T, shape.S, shape.N, shape.N, shape.H, shape.V)
    if BACKEND == "jax":
        shape = Shape(shape.B, shape.T, shape.S, shape.N, shape.K, shape.H, shape.H)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    options: dict[str, Any] = {}
    if data.draw(st.booleans()):
        options["bias"] = rng.normal(size=(1, shape.N, shape.T, shape.S)).astype(np.float32)
    if data.draw(st.booleans()):
        mask = rng.random((shape.B, 1, shape.T, shape.S)) < 0.6
        mask[..., 0] = True
        options["mask"] = mask
    options["is_causal"] = data.draw(st.booleans())
    if BACKEND == "torch":  # where stock takes one of the three
        given = [name for name in ("bias", "mask") if name in options] + ["is_causal"] * options[
            "is_causal"
        ]
        for name in given[1:]:
            del options[name]
    if data.draw(st.booleans()):
        scales: tuple[float, ...] = (0.2, 1.0, -0.5)
        if BACKEND == "torch" and options.get("is_causal"):  # stock gives NaN for a negative one
            scales = scales[:2]
        options["scale"] = data.draw(st.sampled_from(scales))
    inputs = [keras.ops.convert_to_tensor(x) for x in shape.inputs(0, "float32")]
    with small_blocks((3, 4)):
        ours, pull = vjp(functools.partial(ops.dot_product_attention, **options), *inputs)
        theirs, their_pull = vjp(functools.partial(stock, **options), *inputs)
    np.testing.assert_allclose(ours, theirs, atol=2e-6, rtol=1e-5)
    for a, b in zip(pull(2 * ours), their_pull(2 * theirs), strict=True):
        np.testing.assert_allclose(a, b, atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_agrees_in_half_precision(implementation: str, dtype: str) -> None:
    inputs = SHAPE.inputs(0, dtype)
    ours, theirs = ops.dot_product_attention(*inputs), stock(*inputs)
    assert ours.dtype == theirs.dtype
    atol = {"float16": 4e-3, "bfloat16": 3e-2}[dtype]
    np.testing.assert_allclose(tolerances.to_numpy(ours), tolerances.to_numpy(theirs), atol=atol)


def test_agrees_with_the_layers_scores(implementation: str) -> None:
    """Against the weights of `MultiHeadAttention`."""
    layer = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4)
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)
    _, scores = layer(x, x, return_attention_scores=True, use_causal_mask=True)
    query, key = layer._query_dense(x), layer._key_dense(x)
    weights = ops.attention_weights(query, key, is_causal=True)
    np.testing.assert_allclose(weights, scores, atol=1e-6)


# --- where heed differs, on purpose -------------------------------------------------------------


@not_on_jax
def test_a_row_without_keys_is_zero_not_the_mean_of_the_values(implementation: str) -> None:
    inputs = SHAPE.inputs(0, "float32")
    mask = np.ones((1, 1, 5, 7), bool)
    mask[:, :, 2] = False
    mean = np.repeat(inputs[2].mean(axis=1), 2, axis=1)
    np.testing.assert_allclose(stock(*inputs, mask=mask)[:, 2], mean, atol=1e-6)
    assert not np.asarray(ops.dot_product_attention(*inputs, mask=mask))[:, 2].any()


@not_on_jax
def test_asking_for_scores_changes_nothing(implementation: str) -> None:
    """For a row without keys the stock layer returns mean(V), or 0 if scores are requested."""
    layer = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4)
    x = np.random.default_rng(0).normal(size=(1, 3, 8)).astype(np.float32)
    mask = np.zeros((1, 3, 3), bool)
    quiet = layer(x, x, attention_mask=mask)
    asked, _ = layer(x, x, attention_mask=mask, return_attention_scores=True)
    assert np.abs(np.asarray(quiet) - np.asarray(asked)).max() > 1e-3
    query, key, value = SHAPE.inputs(0, "float32")
    alone = ops.dot_product_attention(query, key, value, mask=False)
    ops.attention_weights(query, key, mask=False)
    with_lse, _ = ops.dot_product_attention(query, key, value, mask=False, return_lse=True)
    np.testing.assert_array_equal(alone, with_lse)
    assert not np.asarray(alone).any()


@not_on_jax
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_masked_does_not_leak(implementation: str, poison: float) -> None:
    query, key, value = (x.copy() for x in SHAPE.inputs(0, "float32"))
    key[:, 5:], value[:, 5:] = poison, poison
    mask = (np.arange(7) < 5)[None, None, None]
    assert not np.isfinite(stock(query, key, value, mask=mask)).all()
    out = ops.dot_product_attention(query, key, value, mask=mask)
    expected = reference.dot_product_attention(query, key, value, mask=mask)
    tolerances.assert_values(out, expected.out, "float32")


@not_on_jax
def test_float16_logits_do_not_overflow(implementation: str) -> None:
    x = np.full((1, 3, 2, 64), 40.0, np.float16)
    if BACKEND == "tensorflow":  # stock is right elsewhere
        assert not np.isfinite(stock(x, x, x)).all()
    np.testing.assert_allclose(ops.dot_product_attention(x, x, x), x)


@not_on_jax
def test_one_key_value_head_serves_all(implementation: str) -> None:
    inputs = Shape(N=4, K=1).inputs(0)
    if BACKEND == "tensorflow":  # stock is right elsewhere
        with pytest.raises(Exception, match=r"(?i)dimension|shape|incompatible"):
            stock(*inputs)
    expected = reference.dot_product_attention(*inputs)
    tolerances.assert_values(ops.dot_product_attention(*inputs), expected.out, "float64")


@not_on_jax
def test_heads_that_do_not_divide_are_named(implementation: str) -> None:
    query, key, value = (np.zeros((2, 5, n, 4), np.float32) for n in (3, 2, 2))
    with pytest.raises(Exception) as caught:
        stock(query, key, value)
    assert "head" not in str(caught.value)
    with pytest.raises(ValueError, match="multiple of the heads"):
        ops.dot_product_attention(query, key, value)


@not_on_jax
def test_soft_cap_works(implementation: str) -> None:
    inputs = SHAPE.inputs(0)
    with pytest.raises(ValueError, match="only supported for JAX"):
        stock(*inputs, attn_logits_soft_cap=2.0)
    expected = reference.dot_product_attention(*inputs, soft_cap=2.0)
    out = ops.dot_product_attention(*inputs, soft_cap=2.0)
    tolerances.assert_values(out, expected.out, "float64")


@not_on_jax
def test_the_default_scale_in_float64(implementation: str) -> None:
    inputs = Shape(H=7).inputs(0)
    expected = reference.dot_product_attention(*inputs).out
    assert tolerances.largest_error(stock(*inputs), expected) > 1e-11
    assert tolerances.largest_error(ops.dot_product_attention(*inputs), expected) < 1e-14


@not_on_jax
def test_linear_memory_is_there(implementation: str) -> None:
    inputs = SHAPE.inputs(0, "float32")
    with pytest.raises((ValueError, RuntimeError), match=r"(?i)flash attention"):
        stock(*inputs, flash_attention=True)
    assert ops.dot_product_attention(*inputs).shape == (2, 5, 4, 6)


@not_on_jax
def test_more_queries_than_keys_can_be_aligned_at_the_end(implementation: str) -> None:
    """Stock only supports top-left alignment, where the two agree."""
    inputs = Shape(T=7, S=4).inputs(0, "float32")
    top_left = ops.dot_product_attention(*inputs, is_causal=True)
    np.testing.assert_allclose(top_left, stock(*inputs, is_causal=True), atol=2e-6)
    bottom = ops.dot_product_attention(*inputs, mask=Mask.causal(align="bottom_right"))
    assert not np.asarray(bottom)[:, :3].any()
