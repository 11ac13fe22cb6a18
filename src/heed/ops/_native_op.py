"""A native op as one differentiable function.

The kernels give first derivatives; second derivatives come from the portable form of the same attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Tensors = Sequence[tf.Tensor]
Portable = Callable[[Tensors, bool], "tuple[tf.Tensor, tf.Tensor | None]"]


def native_op(
    forward: Callable[..., Tensors],
    backward: Callable[[Tensors, Tensors, Tensors], Tensors],
    portable: Portable,
    inputs: Tensors,
    return_lse: bool,
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Output and, if asked for, the log-sum-exp.

    Args:
        forward: the kernel, of the inputs: output, log-sum-exp, and more that `backward` may want.
        backward: the kernel, of inputs, what `forward` gave, and the gradients of output and log-sum-exp; the gradient
            of each input.
        portable: the same attention in plain TensorFlow, of the inputs and `return_lse`.
        inputs: all tensors that get a gradient.
        return_lse: whether the log-sum-exp is wanted.
    """

    @tf.custom_gradient
    def op(*tensors: tf.Tensor) -> Any:
        results = forward(*(tf.stop_gradient(x) for x in tensors))

        def gradient(*incoming: tf.Tensor) -> Any:
            return differentiable_gradient(backward, tensors, incoming, results)

        return (tuple(results[:2]) if return_lse else results[0]), gradient

    def differentiable_gradient(
        kernel: Callable[[Tensors, Tensors, Tensors], Tensors],
        tensors: Tensors,
        incoming: Tensors,
        results: Tensors,
    ) -> Any:
        count = len(tensors)

        @tf.custom_gradient
        def gradient_op(*everything: tf.Tensor) -> Any:
            stopped = [tf.stop_gradient(x) for x in everything]
            received = stopped[count:]
            if not return_lse:
                received = [*received, tf.zeros_like(results[1])]
            gradients = kernel(stopped[:count], results, received)

            def second(*cotangents: tf.Tensor) -> Any:
                with tf.GradientTape() as tape:
                    tape.watch(everything)
                    first = _portable_gradient(portable, everything[:count], everything[count:])
                return tape.gradient(first, everything, cotangents, unconnected_gradients="zero")

            return gradients, second

        return gradient_op(*tensors, *incoming)

    result = op(*inputs)
    return result if return_lse else (result, None)


def _portable_gradient(portable: Portable, tensors: Tensors, incoming: Tensors) -> list[tf.Tensor]:
    """Gradients of the portable form, themselves differentiable."""
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        output, lse = portable(tensors, len(incoming) > 1)
    results = [output, *([] if lse is None else [lse])]
    return tape.gradient(results, list(tensors), list(incoming), unconnected_gradients="zero")
