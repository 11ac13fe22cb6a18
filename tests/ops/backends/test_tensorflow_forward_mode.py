"""Forward mode, jacobians and checks of numbers on TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import heed
from heed import Mask, ops
from heed.ops.dispatch import select_fused_ops
from tests.about_tensorflow import tf
from tests.ops.backends import functions
from tests.ops.backends.functions import ROWS, as_heads
from tests.slow import slow


def _product(*arguments: Any) -> Any:
    product = select_fused_ops().product(*arguments)
    return keras.ops.einsum("rk,gnk->rgn", *arguments[:2]) if product is None else product


def _write(*arguments: Any) -> Any:
    written = select_fused_ops().write(*arguments)
    return arguments[0] if written is None else written


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **functions.FUNCTIONS,
    "dot product": lambda x: ops.dot_product_attention(
        *[as_heads(x)] * 3, mask=Mask.lengths([3]) & Mask.causal()
    ),
    "additive": lambda x: ops.additive_attention(x[None], x[None], x[None], ROWS[0]),
    "product": lambda x: _product(x, keras.ops.stack([x, x * x]), True),
    "cache write": lambda x: _write(
        x[None], (x * x)[None, :2], keras.ops.convert_to_tensor(1, "int32")
    ),
}


def tangent(function: Callable[[Any], Any], x: Any) -> Any:
    with tf.autodiff.ForwardAccumulator(x, tf.cos(x)) as accumulator:
        y = function(x)
    return accumulator.jvp(y)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("implementation", ["native", "portable"])
def test_forward_mode_agrees_with_differences(implementation: str, name: str) -> None:
    function, x = FUNCTIONS[name], keras.ops.convert_to_tensor(ROWS)
    with heed.set_implementation(implementation):
        found = tangent(function, x)
        step = 1e-6 * keras.ops.cos(x)
        numeric = (function(x + step) - function(x - step)) / 2e-6
    # Central differences err by their step squared, and by rounding over the step.
    np.testing.assert_allclose(found, numeric, atol=1e-8, rtol=1e-6)


def jacobian(function: Callable[[Any], Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.jacobian(y, x)


def batch_jacobian(function: Callable[[Any], Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        entries = x[None]
        tape.watch(entries)
        y = function(entries[0])[None]
    return tape.batch_jacobian(y, entries)[0]


@pytest.mark.filterwarnings("ignore")  # of loops for ops without a rule
@pytest.mark.parametrize(
    ("name", "transform"),
    [
        ("layer normalization", jacobian),
        *slow([(name, f) for name in FUNCTIONS for f in (jacobian, batch_jacobian)]),
    ],
)
def test_jacobians_agree_with_forward_mode(name: str, transform: Callable[..., Any]) -> None:
    function, x = FUNCTIONS[name], keras.ops.convert_to_tensor(ROWS)
    found = keras.ops.tensordot(transform(function, x), keras.ops.cos(x), 2)
    np.testing.assert_allclose(found, tangent(function, x), rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["layer normalization", *slow(list(FUNCTIONS))])
def test_functions_are_mapped(name: str) -> None:
    function, x = FUNCTIONS[name], tf.constant(np.stack([ROWS, 2 * ROWS]))
    expected = [function(entry) for entry in x]
    np.testing.assert_allclose(tf.vectorized_map(function, x), expected, rtol=1e-12, atol=1e-14)


def test_nothing_flows_through_statistics() -> None:
    x = keras.ops.convert_to_tensor(ROWS)
    found = tangent(lambda x: ops.attention_statistics(*[x[None, :, None]] * 2).entropy, x)
    assert found is None or not np.any(found)


@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        ("dot product", "native"),
        *slow([("additive", "portable"), ("layer normalization", "native")]),
        *slow([("additive", "native"), ("dot product", "portable")]),
    ],
)
def test_forward_mode_through_a_function_is_refused(name: str, implementation: str) -> None:
    with heed.set_implementation(implementation):
        function = tf.function(FUNCTIONS[name])
        with pytest.raises(NotImplementedError, match="no forward mode through"):
            tangent(function, tf.constant(ROWS))
        whole = tf.function(lambda x: tangent(FUNCTIONS[name], x))(tf.constant(ROWS))
        np.testing.assert_allclose(whole, tangent(FUNCTIONS[name], tf.constant(ROWS)), rtol=1e-9)


def test_forward_over_reverse_is_reverse_over_forward() -> None:
    function, x = FUNCTIONS["dot product"], keras.ops.convert_to_tensor(ROWS)

    def gradient(x: Any, of: Callable[[Any], Any]) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = of(x)
        return tape.gradient(total, x)

    first = tangent(lambda x: gradient(x, lambda x: keras.ops.sum(keras.ops.sin(function(x)))), x)
    direction = keras.ops.cos(x)
    with tf.GradientTape() as outer:
        outer.watch(x)
        slope = keras.ops.sum(
            direction * gradient(x, lambda x: keras.ops.sum(keras.ops.sin(function(x))))
        )
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
