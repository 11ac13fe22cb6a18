"""Shared by the sides on TensorFlow: threads, tensors, and a graph for forward or forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _inputs, repeat


def make_graph(
    function: Callable[..., Any],
    case: Case,
    layout: str = "BTNH",
    arrays: list[np.ndarray] | None = None,
    weights: list[Any] | None = None,
) -> Prepared:
    """Make a graph of one call of `function` on the inputs of a case, with gradients if the case has them.

    Args:
        function: computes the output from the case's inputs, such as query, key and value.
        case: the case.
        layout: the layout of the inputs of dot-product attention, "BTNH" or "BNTH".
        arrays: the inputs, if not all inputs of the case.
        weights: variables to compute gradients for, too.
    """
    exchange = _inputs.heads_first if layout == "BNTH" else np.asarray
    dtype = tf.as_dtype(case.dtype)
    arguments = [tf.cast(tf.constant(exchange(x)), dtype) for x in arrays or _inputs.inputs(case)]

    def forward_and_backward(upstream: tf.Tensor, *tensors: tf.Tensor) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            output = function(*tensors)
        return [output, *tape.gradient(output, [*tensors, *(weights or [])], upstream)]

    def to_arrays(results: list[tf.Tensor]) -> list[np.ndarray]:
        values = [tf.cast(result, tf.float32).numpy() for result in results]
        return [exchange(x) if layout == "BNTH" else x for x in values]

    def concrete(function: Callable[..., Any], *inputs: tf.Tensor) -> Callable[[], Any]:
        """Return the concrete graph; a `tf.function` would take an eighth of a millisecond to find it."""
        graph = tf.function(function, autograph=False).get_concrete_function(*inputs)
        return lambda: graph(*inputs)

    def chain(count: int) -> Callable[[], Any]:
        repeated = repeat(function, count)
        return concrete(lambda *tensors: [repeated(*tensors)], *arguments)

    if not case.backward:
        return Prepared.chain(case, chain, to_arrays)
    upstream = tf.cast(tf.constant(exchange(_inputs.output_gradient(case))), dtype)
    return Prepared(concrete(forward_and_backward, upstream, *arguments), to_arrays)


def visible(case: Case) -> tf.Tensor | None:
    """Return which keys each query sees, for use in a graph: booleans (B or 1, 1, T or 1, S); None if all."""
    shape = (case.length, case.key_length)
    seen = None
    if case.causal:
        reach = -1 if case.window is None else case.window - 1
        seen = tf.linalg.band_part(tf.ones(shape, tf.bool), reach, 0)[None, None]
    if case.padded:
        valid = tf.sequence_mask(case.key_lengths, case.key_length)[:, None, None]
        seen = valid if seen is None else tf.logical_and(seen, valid)
    return seen
