"""`tf.custom_gradient` without its leak.

In a graph, TensorFlow registers each gradient function under a new name for the life of the process. The function holds
tensors of the graph, and through the graph its variables, so every traced model would stay in memory with its weights.
Here the graph owns the function, and the registry holds a weak reference.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# There is no public access to the registry.
from tensorflow.python.framework.ops import gradient_registry

from heed.ops.backends.tensorflow.check_numerics import exempt

_registered: dict[str, dict[str, Any]] = gradient_registry._registry


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function of tensors that returns its results and their gradient function."""

    def compute(*tensors: tf.Tensor) -> Any:
        results, gradient = function(*tensors)
        return results, exempt(gradient)

    differentiable = tf.custom_gradient(compute)

    def call(*tensors: tf.Tensor) -> Any:
        results = differentiable(*tensors)
        if not tf.executing_eagerly():
            _hand_to_graph(tf.nest.flatten(results)[0])
        return results

    return call


def _hand_to_graph(result: tf.Tensor) -> None:
    """Make the graph of a result of `tf.custom_gradient` the owner of its registered gradient function."""
    name = result.op.get_attr("_gradient_op_type").decode()
    entry = _registered[name]
    gradient, graph = entry["type"], result.graph
    # An attribute: the collections of a graph are copied to inner graphs.
    owned = getattr(graph, "_heed_gradients", None)
    if owned is None:
        owned = graph._heed_gradients = []
    owned.append(gradient)
    known = weakref.ref(gradient)

    def lookup(op: Any, *incoming: Any) -> Any:
        gradient = known()
        if gradient is None:
            raise LookupError(f"The graph that {name} belongs to is gone.")
        return gradient(op, *incoming)

    entry["type"] = lookup
    weakref.finalize(graph, _registered.pop, name, None).atexit = False
