"""What is computed again in the backward pass has the gradient of what was computed first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import heed
from heed.layers.dropout import Dropout
from tests.backend import BACKEND, on_tensorflow
from tests.layers.stock import assert_close, randoms
from tests.slow import slow

B, T, D = 2, 6, 8


@pytest.fixture(autouse=True)
def _off_again() -> Iterator[None]:
    yield
    heed.decelerate()


class Block(keras.layers.Layer):
    """Calls the op itself and a layer."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.attention, self.dropout = attention, Dropout(0.3, seed=5)

    def build(self, shape: Any) -> None:
        self.attention.build(shape, shape)

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.dropout(self.attention(x, x, use_causal_mask=True), training=training)
        heads = ops.expand_dims(x, 2)
        return x + ops.squeeze(ops.dot_product_attention(heads, heads, heads), 2)


STOCK, OURS = keras.layers.MultiHeadAttention, heed.layers.MultiHeadAttention
Step = Callable[
    [Callable[[Any], Any]], Any
]  # of a function that computes a model; returns its gradient


def gradient(step: Step, make: type, before_backward: Callable[[], Any] = list) -> Any:
    """Return the gradient of a block with respect to its input, after a first call with dropout."""
    keras.utils.set_random_seed(1)
    block = Block(make(2, 4, dropout=0.4, seed=3))
    x = ops.convert_to_tensor(randoms((B, T, D))[0])
    block.build((B, T, D))
    if make is STOCK:
        heed.accelerate(block)
    try:
        return ops.convert_to_numpy(compute(step, block, x, before_backward))
    finally:
        heed.decelerate()


def compute(step: Step, block: Any, x: Any, before_backward: Callable[[], Any]) -> Any:
    def call(x: Any) -> Any:
        return block(x, training=True)

    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = keras.ops.sum(step(call)(x) ** 2)
        before_backward()
        return tape.gradient(loss, x)
    if BACKEND == "torch":
        x = x.clone().requires_grad_()
        loss = (step(call)(x) ** 2).sum()
        before_backward()
        loss.backward()
        return x.grad
    import jax

    pairs = [(v, v.value) for v in block.variables]

    def stateless(x: Any) -> Any:
        with keras.StatelessScope(pairs):
            return (step(call)(x) ** 2).sum()

    return jax.jit(jax.grad(stateless))(x)


def plain(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return call


def checkpoints() -> dict[str, Step]:
    """Return the ways to compute a function again."""
    ways: dict[str, Step] = {"keras.remat": lambda call: keras.remat(call)}
    if BACKEND == "tensorflow":
        import tensorflow as tf

        ways["nested"] = lambda call: tf.recompute_grad(lambda x: tf.recompute_grad(call)(x))
        # Decorated before anything is accelerated.
        ways["compiled"] = lambda call: tf.function(tf.recompute_grad(call))
    if BACKEND == "torch":
        from functools import partial

        from torch.utils.checkpoint import checkpoint

        ways["reentrant"] = lambda call: partial(checkpoint, call, use_reentrant=True)
        ways["nested"] = lambda call: partial(
            checkpoint, partial(checkpoint, call, use_reentrant=False), use_reentrant=False
        )
    if BACKEND == "jax":
        ways["nested"] = lambda call: keras.remat(keras.remat(call))
    return ways


@pytest.mark.parametrize("make", [STOCK, *slow([OURS])])
@pytest.mark.parametrize("way", checkpoints())
def test_dropout_and_meaning_are_those_of_the_first_computation(way: str, make: type) -> None:
    expected = gradient(plain, make)
    assert_close(gradient(checkpoints()[way], make), expected)


@pytest.mark.skipif(BACKEND == "jax", reason="JAX does not run Python again")
@pytest.mark.parametrize("way", ["keras.remat", *slow(["nested"])])
def test_what_is_accelerated_may_change_before_the_backward_pass(way: str) -> None:
    expected = gradient(plain, STOCK)
    step = checkpoints()[way]
    assert_close(gradient(step, STOCK, heed.decelerate), expected)
    assert_close(gradient(step, STOCK, heed.accelerate), expected)


@pytest.mark.skipif(BACKEND == "jax", reason="JAX does not run Python again")
def test_the_implementation_is_that_of_the_first_computation() -> None:
    def portable(repeat: Step) -> Step:
        def step(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def run(x: Any) -> Any:
                with heed.set_implementation("portable"):
                    return repeat(call)(x)

            return run

        return step

    assert_close(gradient(portable(keras.remat), OURS), gradient(portable(plain), OURS))


def trained(make: type, remat: bool, **options: Any) -> float:
    """Return the loss of a model that `fit` trains, eagerly on TensorFlow, where Keras cannot compile the scope."""
    keras.utils.set_random_seed(1)
    inputs, (x, y) = keras.Input((T, D)), randoms((4, T, D), (4, T, D))
    with keras.RematScope("full" if remat else None):
        layer = make(2, 4, seed=3, dropout=0.3, **options)
        inner = keras.Model(inputs, layer(inputs, inputs))
    outer = keras.Model(inputs, inner(inputs))
    if make is STOCK:
        heed.accelerate(outer)
    outer.compile("sgd", "mse", run_eagerly=BACKEND == "tensorflow")
    history = outer.fit(x, y, epochs=3, verbose=0, shuffle=False).history
    heed.decelerate()
    return float(history["loss"][-1])


@pytest.mark.parametrize("make", [OURS, *slow([STOCK])])
def test_training_in_a_scope_of_keras(make: type) -> None:
    assert trained(make, True) == pytest.approx(trained(make, False), rel=1e-6)


# Programs


def runs(model: keras.Model, x: Any) -> bool:
    """Return whether `predict` runs on heed, by a query without keys, for which heed gives 0."""
    return bool(np.all(np.abs(model.predict(x, verbose=0)) < 1e-6))


def nothing_visible() -> keras.Model:
    inputs = keras.Input((T, D))
    layer = keras.layers.MultiHeadAttention(2, 4, use_bias=False)
    mask = ops.zeros((1, T, T), dtype="bool")
    return keras.Model(inputs, layer(inputs, inputs, attention_mask=mask))


def test_programs_are_traced_again_when_acceleration_changes() -> None:
    model, x = nothing_visible(), randoms((2, T, D))[0]
    outer = keras.Sequential([keras.Input((T, D)), model])
    assert not runs(outer, x)
    with heed.accelerate(keras.layers.Dense(1)):
        assert not runs(outer, x)
        with heed.accelerate():
            assert runs(outer, x)
        assert not runs(outer, x)
    with heed.accelerate(model):
        assert runs(outer, x)
    assert not runs(outer, x)


class Whole(keras.Model):
    """A model without layers, which calls the op."""

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(shape=(D, D), initializer="ones")

    def call(self, x: Any) -> Any:
        heads = ops.expand_dims(x @ self.w, 2)
        mask = ops.zeros((1, 1, T, T), dtype="bool")
        return ops.squeeze(ops.dot_product_attention(heads, heads, heads, mask=mask), 2)


def test_a_model_that_calls_the_op_itself() -> None:
    model, x = Whole(), randoms((2, T, D))[0]
    with heed.accelerate(model):
        assert runs(model, x)


@on_tensorflow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="of TensorFlow")
@pytest.mark.parametrize("traced_before", [True, *slow([False])])
def test_a_program_inside_a_function_that_is_computed_again(traced_before: bool) -> None:
    import tensorflow as tf

    layer = OURS(2, 4, dropout=0.4, seed=3)
    x = tf.constant(randoms((B, T, D))[0])
    layer.build(x.shape, x.shape)
    program = tf.function(lambda x: layer(x, x, training=True))

    def call(x: Any) -> Any:
        return program(x) + layer(x, x, training=True)

    def compute(call: Callable[[Any], Any]) -> tuple[Any, Any]:
        layer._dropout_layer.seed_generator.state.assign([3, 0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(call(x) ** 2)
        return tape.gradient(loss, x), layer._dropout_layer.seed_generator.state.value

    if traced_before:
        expected = compute(call)
        assert_close(compute(tf.recompute_grad(call)), expected)
    else:
        found = compute(tf.recompute_grad(call))
        assert_close(found, compute(call))
