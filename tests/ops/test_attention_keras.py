"""Agrees with stock `keras.ops.dot_product_attention` where that is right; acceleration/test_faults.py has the rest."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heed import ops
from tests import strategies, tolerances
from tests.backend import BACKEND, vjp
from tests.ops.harness import small_blocks
from tests.strategies import Shape

# On JAX stock takes only values as wide as keys, and has faults of its own.
V = 8 if BACKEND == "jax" else 6
SHAPE = Shape(B=2, T=5, S=7, N=4, K=2, H=8, V=V)
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
