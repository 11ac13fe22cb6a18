"""Forward mode, jacobians and checks of numbers on TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import heed
from heed import Mask, ops
from tests.framework import skip_module_unless_on_tensorflow, tf

skip_module_unless_on_tensorflow()

ROWS = np.random.default_rng(0).normal(size=(4, 6))
VECTOR = ROWS[0]
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "dot product": lambda x: ops.dot_product_attention(
        *[x[None, :, None]] * 3, mask=Mask.lengths([3]) & Mask.causal()
    ),
    "additive": lambda x: ops.additive_attention(x[None], x[None], x[None], VECTOR),
    "weights": lambda x: ops.attention_weights(x[None, :, None], x[None, :, None]),
    "layer normalization": lambda x: ops.layer_normalization(x, VECTOR, VECTOR),
    "cross entropy": lambda x: ops.softmax_cross_entropy(x, [1, 0, 5, 2], label_smoothing=0.1),
    "dropout": lambda x: ops.dropout(x, 0.5, seed=3, residual=x),
}


def tangent(function: Callable[[Any], Any], x: Any) -> Any:
    with tf.autodiff.ForwardAccumulator(x, tf.cos(x)) as accumulator:
        y = function(x)
    return accumulator.jvp(y)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("implementation", ["native", "portable"])
def test_forward_mode_agrees_with_differences(implementation: str, name: str) -> None:
    function, x = FUNCTIONS[name], tf.constant(ROWS)
    with heed.set_implementation(implementation):
        found = tangent(function, x)
        step = 1e-6 * tf.cos(x)
        numeric = (function(x + step) - function(x - step)) / 2e-6
    # Central differences err by their step squared, and by rounding over the step.
    np.testing.assert_allclose(found, numeric, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("name", ["dot product", "additive", "layer normalization"])
def test_forward_mode_through_a_function_is_refused(name: str) -> None:
    with heed.set_implementation("native"):
        function = tf.function(FUNCTIONS[name])
        with pytest.raises(NotImplementedError, match="no forward mode through"):
            tangent(function, tf.constant(ROWS))
        whole = tf.function(lambda x: tangent(FUNCTIONS[name], x))(tf.constant(ROWS))
        np.testing.assert_allclose(whole, tangent(FUNCTIONS[name], tf.constant(ROWS)), rtol=1e-9)


def test_forward_over_reverse_is_reverse_over_forward() -> None:
    function, x = FUNCTIONS["dot product"], tf.constant(ROWS)

    def gradient(x: Any, of: Callable[[Any], Any]) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = of(x)
        return tape.gradient(total, x)

    first = tangent(lambda x: gradient(x, lambda x: tf.reduce_sum(tf.sin(function(x)))), x)
    direction = tf.cos(x)
    with tf.GradientTape() as outer:
        outer.watch(x)
        slope = tf.reduce_sum(direction * gradient(x, lambda x: tf.reduce_sum(tf.sin(function(x)))))
    np.testing.assert_allclose(first, outer.gradient(slope, x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("implementation", ["native", "portable"])
def test_checks_of_numbers_let_infinities_inside_pass(implementation: str) -> None:
    x = tf.constant(ROWS.astype("float32").reshape(2, 2, 1, 6))
    tf.debugging.enable_check_numerics()
    try:
        with heed.set_implementation(implementation), tf.GradientTape() as tape:
            tape.watch(x)
            mask = Mask.lengths([2, 0]) & Mask.causal()
            total = tf.reduce_sum(ops.dot_product_attention(x, x, x, mask=mask) ** 2)
            gradient = tape.gradient(total, x)
        with pytest.raises(tf.errors.InvalidArgumentError, match="Infinity or NaN"):
            tf.math.log(tf.zeros(()))
    finally:
        tf.debugging.disable_check_numerics()
    assert np.isfinite(gradient).all()
