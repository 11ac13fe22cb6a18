"""Custom gradients, second derivatives of what has a first derivative of its own, and forward mode.

Custom gradients and native ops are unknown to forward mode, `tf.autodiff.ForwardAccumulator`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

# There is no public question whether a tensor has a tangent.
from tensorflow.python import pywrap_tfe

# There is no public access to the registry.
from tensorflow.python.framework.ops import gradient_registry

from heed.ops.backends.tensorflow.check_numerics import exempt

Several = Sequence[tf.Tensor]
_registered: dict[str, dict[str, Any]] = gradient_registry._registry


def differentiate_twice(
    function: Callable[..., Any],
    operands: Several,
    incoming: Several,
    cotangents: Sequence[tf.Tensor | None],
) -> list[tf.Tensor]:
    """Return the gradients of sum(cotangents * gradients of `function`): of the operands, then of `incoming`.

    Args:
        function: of the operands.
        operands: tensors.
        incoming: gradients of its results.
        cotangents: of the gradients of the operands; None for 0.
    """
    check_tapes()
    operands, incoming = ([tf.identity(x) for x in several] for several in (operands, incoming))
    with tf.GradientTape() as outer:
        outer.watch([*operands, *incoming])
        with tf.GradientTape() as inner:
            inner.watch(operands)
            results = function(*operands)
        gradients = inner.gradient(results, operands, incoming, unconnected_gradients="zero")
    pairs = [x for x in zip(gradients, cotangents, strict=True) if x[1] is not None]
    return outer.gradient(
        [x for x, _ in pairs],
        [*operands, *incoming],
        [x for _, x in pairs],
        unconnected_gradients="zero",
    )


def has_tangents(tensors: Iterable[Any]) -> bool:
    """Return whether an accumulator watches one of the tensors; None is no tensor."""
    _, tangents = pywrap_tfe.TFE_Py_PackJVPs([x for x in tensors if x is not None])
    return bool(tangents)


def check_tapes() -> None:
    """Refuse to differentiate where tapes record nothing: TensorFlow then takes missing gradients for zeros.

    Raises:
        NotImplementedError: in the tangents of a `tf.function`, which TensorFlow makes of its gradient.
    """
    if tf.executing_eagerly():
        return
    x = tf.zeros(())
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.identity(x)
    if tape.gradient(y, x) is None:
        raise NotImplementedError(
            "heed has no forward mode through a tf.function: call the function itself inside the ForwardAccumulator, "
            "and put the tf.function around both"
        )


def register_gradient(name: str) -> Callable[[Any], Any]:
    """Register the gradient of an op. TensorFlow takes each name once; a later import of heed replaces it."""
    _registered.pop(name, None)
    return tf.RegisterGradient(name)


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function of tensors that returns its results and their gradient function.

    It does not leak, as `tf.custom_gradient` does. In a graph, TensorFlow registers each gradient function under a new
    name for the life of the process. The function holds tensors of the graph, and through the graph its variables, so
    every traced model would stay in memory with its weights. Here the graph owns the function, and the registry holds a
    weak reference.
    """

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
