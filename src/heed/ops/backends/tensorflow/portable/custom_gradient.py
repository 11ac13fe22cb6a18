"""`tf.custom_gradient` without its leak.

In a graph TensorFlow registers the function that differentiates under a new name, for the life of the process. That
function holds tensors of the graph, these the graph, and the graph the variables that it reads: each traced model
would stay in memory with its weights. Here the graph holds the function, and the registry only knows where it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# No public name leads to what is registered.
from tensorflow.python.framework.ops import gradient_registry

_registered: dict[str, dict[str, Any]] = gradient_registry._registry


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors alone that returns its results and the function that differentiates them."""
    differentiable = tf.custom_gradient(function)

    def call(*tensors: tf.Tensor) -> Any:
        results = differentiable(*tensors)
        if not tf.executing_eagerly():
            _hand_to_graph(tf.nest.flatten(results)[0])
        return results

    return call


def _hand_to_graph(result: tf.Tensor) -> None:
    """Makes the graph of a result of `tf.custom_gradient` the owner of the gradient that was registered for it."""
    name = result.op.get_attr("_gradient_op_type").decode()
    entry = _registered[name]
    gradient, graph = entry["type"], result.graph
    # On the graph itself: its collections are copied to the graphs inside.
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
