"""Large scores, biases and scales through the ops: native, portable by rows and by tiles, weights and statistics."""

from __future__ import annotations

import os
from typing import Any

import keras
import numpy as np
import pytest

import heed
from heed import ops
from tests import reference
from tests.backend import vjp
from tests.native import fuzz_large
from tests.ops.harness import FORMS, small_blocks

FIRST_SEED = int(os.environ.get("HEED_FUZZ_SEED", "10000"))


def attend(form: str, inputs: list[Any], d_out: Any, d_lse: Any, **options: Any) -> list[Any]:
    """Return output, log-sum-exp, and gradients of query, key, value and (if there is one) bias."""
    implementation, blocks = FORMS[form]
    bias = options.pop("bias", None)
    given = [keras.ops.convert_to_tensor(x) for x in [*inputs, *([] if bias is None else [bias])]]
    with heed.set_implementation(implementation), small_blocks(blocks):
        results, pull = vjp(
            lambda query, key, value, bias=None: ops.dot_product_attention(
                query, key, value, bias=bias, return_lse=True, **options
            ),
            *given,
        )
        return [np.asarray(x) for x in (*results, *pull([d_out, d_lse]))]


def check_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = fuzz_large.draw(rng, most=300)
    if "dropout" in problem.expected:
        return
    query, key, _ = problem.inputs
    options = {name: x for name, x in problem.expected.items() if name != "mask"}
    if "bias" in options:
        options["bias"] = problem.options["bias"]
    options["mask"] = np.broadcast_to(problem.expected["mask"], problem.visible.shape)
    for form in FORMS:
        output, lse, *gradients = attend(
            form, problem.inputs, problem.d_out, problem.d_lse, **options
        )
        problem.check_forward(output, lse)
        problem.check_backward(gradients[:3])
        if "bias" in options:
            problem.check_bias(gradients[3])
    problem.check_weights(np.asarray(ops.attention_weights(query, key, **options)))
    with small_blocks((3, 5)):
        rows = ops.attention_statistics(query, key, keys=(0,), **options)
    if problem.exact:
        wanted = reference.dot_product_attention(*problem.inputs, **problem.expected).probabilities
        np.testing.assert_allclose(rows.mass[..., 0], wanted[..., 0], atol=1e-5)
        entropy = -(wanted * np.log(np.where(wanted > 0, wanted, 1))).sum(-1)
        np.testing.assert_allclose(rows.entropy, entropy, atol=1e-4)
    assert np.isfinite(rows.distance).all()


@pytest.mark.parametrize("seed", range(6))
def test_random_calls(seed: int) -> None:
    check_one(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + 1000, 50))
def test_many_more(first: int) -> None:
    for seed in range(first, first + 50):
        try:
            check_one(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.fixture
def problem() -> list[np.ndarray]:
    """Return query, key, value and the gradient of the output."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=(1, 20, 2, 8)).astype(np.float32) for _ in range(4)]


NO_LSE = np.zeros((1, 2, 20), np.float32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bias", [-1e9, -3e9, -1e29, 3e9])
def test_a_bias_that_all_keys_share_changes_nothing_but_rounding(
    problem: list[np.ndarray], form: str, bias: float
) -> None:
    """Such a bias absorbs the scores, so weights and the gradients of values are even."""
    *inputs, d_out = problem
    biases = np.full((1, 1, 20, 20), bias, np.float32)
    output, lse, d_query, d_key, d_value, d_bias = attend(
        form, inputs, d_out, NO_LSE, bias=biases, scale=1e-9
    )
    zero = [np.zeros_like(inputs[0]), *inputs[1:]]
    wanted = reference.dot_product_attention(*zero, bias=biases)
    gradients = reference.dot_product_attention_backward(*zero, d_out, bias=biases)
    np.testing.assert_allclose(output, wanted.out, atol=2e-6)
    np.testing.assert_allclose(lse, wanted.lse, rtol=1e-6)
    np.testing.assert_allclose(d_value, gradients.value, atol=2e-5)
    np.testing.assert_allclose(d_bias, gradients.bias, atol=1e-5)
    assert max(np.abs(d_query).max(), np.abs(d_key).max()) < 1e-6
    weights = ops.attention_weights(*inputs[:2], bias=biases, scale=1e-9)
    np.testing.assert_allclose(weights, 1 / 20, rtol=1e-6)
    rows = ops.attention_statistics(*inputs[:2], bias=biases, scale=1e-9)
    np.testing.assert_allclose(rows.entropy, np.log(20), rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "bias"),
    [  # -1e30 is the limit; the others lie beyond it
        ("float32", -1e30),
        ("float64", float(np.finfo(np.float32).min)),
        ("bfloat16", -1e30),
        pytest.param("float32", float(np.finfo(np.float32).min), marks=pytest.mark.slow),
        pytest.param("float64", -1e30, marks=pytest.mark.slow),
        pytest.param("bfloat16", float(np.finfo(np.float32).min), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_a_hiding_bias_hides_as_minus_infinity_does(
    problem: list[np.ndarray], form: str, bias: float, dtype: str
) -> None:
    *inputs, d_out = (keras.ops.cast(x, dtype) for x in problem)
    biases = np.zeros((1, 1, 20, 20), np.float32)
    biases[..., 3, :] = bias
    biases[..., 7:, 5:] = bias
    d_lse = keras.ops.cast(NO_LSE, "float64" if dtype == "float64" else "float32")
    hidden = np.where(biases == 0, 0, -np.inf).astype(np.float32)
    actual = attend(form, inputs, d_out, d_lse, bias=biases)
    wanted = attend(form, inputs, d_out, d_lse, bias=hidden)
    for a, b in zip(actual, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    output, lse, d_query, d_key, d_value, d_bias = actual
    assert not output[:, 3].any()
    assert np.isneginf(lse[..., 3]).all()
    assert not d_query[:, 3].any()
    assert not d_bias[..., 3, :].any()
    for x in (output, d_query, d_key, d_value, d_bias):
        assert np.isfinite(x.astype(np.float32)).all()
    weights = np.asarray(ops.attention_weights(*inputs[:2], bias=biases))
    assert not weights[..., 3, :].any()
    assert not weights[..., 7:, 5:].any()
    rows = ops.attention_statistics(*inputs[:2], bias=biases, keys=(6,))
    assert not np.asarray(rows.entropy)[..., 3].any()
    assert not np.asarray(rows.mass)[..., 7:, 0].any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [1e3, 1e5, 1e9, 1e30])
def test_values_get_the_gradient_that_their_weights_say(
    problem: list[np.ndarray], form: str, scale: float
) -> None:
    """Two keys with bitwise equal scores, far above all others, have half the weight each."""
    query, key, value, d_out = problem
    query, key = np.abs(query) + 1, -np.abs(key) - 1
    key[:, 3] = key[:, 11] = 1
    output, _, _, _, d_value = attend(form, [query, key, value], d_out, NO_LSE, scale=scale)
    half = (value[:, 3] + value[:, 11]) / 2
    np.testing.assert_allclose(output, np.broadcast_to(half[:, None], output.shape), rtol=1e-6)
    wanted = np.zeros_like(value)
    wanted[:, 3] = wanted[:, 11] = d_out.sum(1) / 2
    np.testing.assert_allclose(d_value, wanted, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "value"), [("scale", 1e38), ("scale", -1e31), ("soft_cap", 1e39), ("soft_cap", 1e-31)]
)
def test_what_float32_cannot_hold_is_refused(name: str, value: float) -> None:
    x = np.ones((1, 2, 1, 4), np.float32)
    with pytest.raises(ValueError, match=rf"`{name}` must be in .*1e\+?30\].* Received: {name}="):
        ops.dot_product_attention(x, x, x, **{name: value})
    double = x.astype(np.float64)
    assert np.isfinite(ops.dot_product_attention(double, double, double, **{name: value})).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [1e-30, 1e30])
def test_extreme_soft_caps(problem: list[np.ndarray], form: str, value: float) -> None:
    *inputs, d_out = problem
    output, lse, *gradients = attend(form, inputs, d_out, NO_LSE, soft_cap=value)
    wanted = reference.dot_product_attention(*inputs, soft_cap=value)
    backward = reference.dot_product_attention_backward(*inputs, d_out, soft_cap=value)
    np.testing.assert_allclose(output, wanted.out, atol=2e-6)
    np.testing.assert_allclose(lse, wanted.lse, rtol=1e-5)
    for name, actual in zip(("query", "key", "value"), gradients, strict=True):
        np.testing.assert_allclose(actual, getattr(backward, name), atol=2e-5)
