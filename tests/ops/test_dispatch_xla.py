"""The portable form runs where XLA compiles, the native kernels elsewhere; checked in traces and runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.about_tensorflow import tf

# isort: split
import keras
import numpy as np
import pytest

import heed
from heed import ops
from tests.backend import vjp
from tests.graphs import traced

pytestmark = pytest.mark.skipif(
    heed.info()["implementation"] != "native", reason=f"no native kernels: {heed.info()['reason']}"
)
X = tf.constant(np.random.default_rng(0).normal(size=(2, 5, 2, 4)).astype("float32"))


def attend(x: tf.Tensor) -> tf.Tensor:
    return ops.dot_product_attention(x, x, x, is_causal=True)


def in_loop(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda i, _: i < 1, lambda i, _: (i + 1, attend(x)), (0, x))[1]


def in_branch(x: tf.Tensor) -> tf.Tensor:
    return tf.cond(tf.reduce_any(x > 0), lambda: attend(x), lambda: x)


def with_gradient(x: tf.Tensor) -> tf.Tensor:
    """Traced while the tape runs backwards, and added with factor 0."""
    y, pull = vjp(attend, x)
    return y + 0.0 * pull()[0]


def in_thread(x: tf.Tensor) -> tf.Tensor:
    """While another thread traces for XLA."""
    inside: list[Any] = []
    plain = tf.function(attend)

    @tf.function(jit_compile=True)
    def compiled(x: tf.Tensor) -> tf.Tensor:
        with ThreadPoolExecutor(1) as pool:
            inside.append(pool.submit(plain, X).result())
        return attend(x)

    with traced() as graphs:
        _concrete = compiled.get_concrete_function(x)  # keeps the graph for inspection
    assert graphs.native == {"HeedAttention"}  # of the other thread
    return inside[0]


class Pipeline:
    """Created on demand and kept: a collected graph cannot be inspected."""

    def __iter__(self) -> Any:
        self.data = tf.data.Dataset.from_tensors(X).map(attend)
        return iter(self.data)


PIPELINE = Pipeline()
PLAIN: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "eager": attend,
    "traced": tf.function(attend),
    "nested": tf.function(lambda x: tf.function(attend)(x)),
    "loop": tf.function(in_loop),
    "branch": tf.function(in_branch),
    "gradient": tf.function(with_gradient),
    "not compiled on purpose": tf.function(attend, jit_compile=False),
    "map": lambda x: next(iter(PIPELINE)),
    "while another thread compiles": in_thread,
}
# Only traced by default: tracing decides which form runs, and XLA is slow.
COMPILED: dict[str, tf.types.experimental.PolymorphicFunction] = {
    "compiled": tf.function(attend, jit_compile=True),
    "nested in compiled": tf.function(lambda x: tf.function(attend)(x), jit_compile=True),
    "compiled in plain": tf.function(lambda x: tf.function(attend, jit_compile=True)(x)),
    "compiled in a loop": tf.function(
        lambda x: tf.while_loop(
            lambda i, _: i < 1,
            lambda i, _: (i + 1, tf.function(attend, jit_compile=True)(x)),
            (0, x),
        )[1]
    ),
    "loop in compiled": tf.function(in_loop, jit_compile=True),
    "branch in compiled": tf.function(in_branch, jit_compile=True),
    "gradient in compiled": tf.function(with_gradient, jit_compile=True),
}


@pytest.mark.parametrize("how", PLAIN)
def test_the_kernels_run_where_xla_does_not_compile(how: str) -> None:
    with traced() as graphs:
        actual = PLAIN[how](X)
    assert how == "eager" or "HeedAttention" in graphs.native
    np.testing.assert_allclose(actual, attend(X), atol=1e-6)


@pytest.mark.parametrize("how", COMPILED)
def test_the_portable_form_is_traced_where_xla_compiles(how: str) -> None:
    with traced() as graphs:
        _concrete = COMPILED[how].get_concrete_function(X)  # keeps the graph for inspection
    assert graphs.by_xla
    assert not graphs.native


def test_kernels_stay_beside_a_function_that_xla_compiles() -> None:
    def run(x: tf.Tensor) -> tf.Tensor:
        return attend(x) + 0.0 * tf.function(tf.identity, jit_compile=True)(x)

    with traced() as graphs:
        _concrete = tf.function(run).get_concrete_function(X)
    assert graphs.by_xla
    assert graphs.native == {"HeedAttention"}


@pytest.mark.slow
@pytest.mark.parametrize("how", COMPILED)
def test_what_xla_compiles_gives_the_same(how: str) -> None:
    np.testing.assert_allclose(COMPILED[how](X), attend(X), atol=1e-6)


def test_xla_compiles_what_stands_beside_attention() -> None:
    """Cross-entropy, normalization and dropout with their gradients, in one program."""
    rng = np.random.default_rng(1)
    inputs = [tf.constant(rng.normal(size=n), tf.float32) for n in ((3, 9), (9,), (9,))]
    labels = tf.constant([0, 8, -1])

    def run(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
        y = ops.layer_normalization(x, scale, offset)
        y = ops.dropout(ops.rms_normalization(y, scale), 0.3, seed=5, residual=x)
        return ops.softmax_cross_entropy(y, labels, label_smoothing=0.1, ignore_class=-1)

    def differentiate(*inputs: tf.Tensor) -> list[tf.Tensor]:
        losses, pull = vjp(run, *inputs)
        return [losses, *pull()]

    with traced() as graphs:
        found = tf.function(differentiate, jit_compile=True)(*inputs)
    assert not graphs.native
    for one, other in zip(found, differentiate(*inputs), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_the_kernels_run_in_a_strategy() -> None:
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    run = tf.function(lambda x: strategy.run(attend, (x,)))
    with traced() as graphs:
        actual = run(X)
    assert graphs.native == {"HeedAttention"}
    np.testing.assert_allclose(actual, attend(X), atol=1e-6)


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_model_of_ones_own_compiles_or_not(jit: bool) -> None:
    """heed's layers refuse XLA while native kernels are chosen; ops in a user's layer follow the choice."""

    class Attend(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return attend(x)

    model = keras.Sequential([keras.Input((5, 2, 4)), keras.layers.Dense(4), Attend()])
    model.compile("sgd", "mse", jit_compile=jit)
    with traced() as graphs:
        model.fit(X, X, verbose=0)
    assert graphs.by_xla == jit
    assert graphs.native == (set() if jit else {"HeedAttention", "HeedAttentionGradient"})
