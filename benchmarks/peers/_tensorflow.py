"""What the sides on TensorFlow share: inputs, and one graph for forward or forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.cases import Case
from benchmarks.peers import Run


def inputs(case: Case, layout: str = "BTNH") -> list[tf.Tensor]:
    """Query, key and value, normally distributed, the same in each process."""
    generator = np.random.default_rng(0)
    shape = (case.batch, case.length, case.heads, case.head_dim)
    arrays = [generator.standard_normal(shape, dtype=np.float32) for _ in range(3)]
    if layout == "BNTH":
        arrays = [np.ascontiguousarray(array.transpose(0, 2, 1, 3)) for array in arrays]
    return [tf.constant(array) for array in arrays]


def hidden_states(case: Case) -> tf.Tensor:
    """The input of a layer, (B, T, N*H)."""
    generator = np.random.default_rng(0)
    shape = (case.batch, case.length, case.heads * case.head_dim)
    return tf.constant(generator.standard_normal(shape, dtype=np.float32))


def graph(
    function: Callable[..., Any], arguments: list[tf.Tensor], sources: list[Any] | None, case: Case
) -> Run:
    """One call of `function(*arguments)` as a graph, with the gradients of `sources` if asked for.

    Args:
        function: computes the output from the arguments.
        arguments: what it is called with.
        sources: what gradients are taken of besides the arguments: variables, or None.
        case: says whether gradients are computed.

    Returns:
        A function without arguments; on a CPU it returns when the values are there.
    """

    @tf.function(autograph=False)
    def forward(*tensors: tf.Tensor) -> Any:
        return function(*tensors)

    @tf.function(autograph=False)
    def forward_and_backward(upstream: tf.Tensor, *tensors: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            output = function(*tensors)
        return output, tape.gradient(output, [*tensors, *(sources or [])], upstream)

    if not case.backward:
        return lambda: forward(*arguments)
    shape = forward.get_concrete_function(*arguments).output_shapes
    upstream = tf.constant(np.random.default_rng(1).standard_normal(shape, dtype=np.float32))
    return lambda: forward_and_backward(upstream, *arguments)
