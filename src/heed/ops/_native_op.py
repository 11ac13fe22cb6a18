"""The native ops as differentiable functions.

The kernels give first derivatives; second derivatives come from the portable form of the same attention, read back
from the inputs of the op. Nothing but those inputs is needed, so gradients are registered once for each op, and no
graph outlives its function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from heed.ops import _native
from heed.ops._wire import Wire

Tensors = Sequence[tf.Tensor]
# The portable form: output and log-sum-exp, from what an op was told and the tensors that get a gradient.
Portable = Callable[[Wire, Tensors], "tuple[tf.Tensor, tf.Tensor]"]


def native_op(name: str, operands: Tensors, wire: Wire, **others: tf.Tensor) -> list[tf.Tensor]:
    """Runs an op.

    Args:
        name: of the op, as Python says it: "heed_attention".
        operands: query, key and value.
        wire: what to compute.
        others: for ops of the backward pass, what the forward pass gave (`output`, `softmax`) and the gradients of
            what it showed (`output_gradient`, `lse_gradient`).

    Returns: of the forward pass output, log-sum-exp, and the highest score and sum of each row, which its gradient
        needs.
    """
    query, key, value = operands
    results = getattr(_native.ops(), name)(
        query=query, key=key, value=value, **others, **wire._asdict()
    )
    return [results] if isinstance(results, tf.Tensor) else list(results)


def register_gradients(name: str, portable: Portable, parameters: int) -> None:
    """Makes an op differentiable twice.

    Args:
        name: of the op; its gradient has "_gradient" at the end. If its bias has an op of its own, so that a graph
            can leave it out, that has "_bias_gradient".
        portable: the same attention in plain TensorFlow.
        parameters: how many of the op's `reals` get a gradient, apart from the bias, which follows them; 0 for ops
            whose first one is no operand.
    """
    own_bias = parameters == 0

    def split(op: tf.Operation, extra: int) -> tuple[Tensors, Tensors, Wire, slice]:
        """Query, key, value; what the backward pass reads; the rest; and which of `reals` get a gradient."""
        inputs = list(op.inputs)
        wire = Wire.of([*inputs[3:6], *inputs[6 + extra :]]).constant()
        first = 1 if own_bias else 0
        trained = slice(first, first + parameters + has_bias(wire))
        return inputs[:3], inputs[6 : 6 + extra], wire, trained

    def has_bias(wire: Wire) -> bool:
        # By its rank: the slopes of ALiBi, which may stand there too, are a vector.
        return len(wire.reals) > 1 and not (own_bias and wire.reals[1].shape.rank == 1)

    def ordered(
        op: tf.Operation, wire: Wire, trained: slice, gradients: Tensors, extra: Tensors = ()
    ) -> Any:
        """Gradients in the order of the op's inputs."""
        reals: list[tf.Tensor | None] = [None] * len(wire.reals)
        reals[trained] = gradients[3:]
        known = [*gradients[:3], None, None, None, *extra, *reals]
        return known + [None] * (len(op.inputs) - len(known))

    def first(op: tf.Operation, output_gradient: Any, lse_gradient: Any, _: Any) -> Any:
        operands, _, wire, trained = split(op, 0)
        received = {
            "output": op.outputs[0],
            "softmax": op.outputs[2],
            "output_gradient": output_gradient,
            "lse_gradient": lse_gradient,
        }
        gradients = native_op(f"{name}_gradient", operands, wire, **received)
        if own_bias and has_bias(wire):
            (gradient,) = native_op(f"{name}_bias_gradient", operands, wire, **received)
            gradient.set_shape(wire.reals[1].shape)
            gradients.append(gradient)
        trained_count = 3 + trained.stop - trained.start
        return ordered(op, wire, trained, gradients[:trained_count])

    def second(op: tf.Operation, cotangents: Tensors, place: slice) -> Any:
        """`place` says which of the first derivatives the op gives."""
        operands, extra, wire, trained = split(op, 4)
        tensors = [tf.identity(x) for x in (*operands, *wire.reals[trained])]
        incoming = [tf.identity(x) for x in extra[2:]]
        everything = [*tensors, *incoming]
        with tf.GradientTape() as outer:
            outer.watch(everything)
            with tf.GradientTape() as inner:
                inner.watch(tensors)
                results = portable(wire, tensors)
            gradients = inner.gradient(results, tensors, incoming, unconnected_gradients="zero")
        gradients = gradients[place]
        found = outer.gradient(
            gradients, everything, cotangents[: len(gradients)], unconnected_gradients="zero"
        )
        # Output and softmax follow from the operands, whose derivatives these are in all.
        count = len(tensors)
        return ordered(op, wire, trained, found[:count], [None, None, *found[count:]])

    camel = name.title().replace("_", "")
    tf.RegisterGradient(camel)(first)
    if own_bias:
        tf.RegisterGradient(f"{camel}Gradient")(lambda op, *x: second(op, x, slice(0, 3)))
        tf.RegisterGradient(f"{camel}BiasGradient")(lambda op, *x: second(op, x, slice(3, 4)))
    else:
        tf.RegisterGradient(f"{camel}Gradient")(lambda op, *x: second(op, x, slice(None)))
