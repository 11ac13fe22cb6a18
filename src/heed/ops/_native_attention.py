"""Dot-product attention by the native kernels, as one differentiable function.

The kernels give the first derivatives with respect to query, key and value. The gradient of a bias, and second
derivatives, come from the portable form of the same attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from heed.ops._native import NativeCall

Portable = Callable[
    [Sequence[tf.Tensor], "tf.Tensor | None", bool], "tuple[tf.Tensor, tf.Tensor | None]"
]


def native_attention(
    kernels: NativeCall,
    portable: Portable,
    inputs: Sequence[tf.Tensor],
    bias: tf.Tensor | None,
    return_lse: bool,
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Output like the query, and the log-sum-exp (B, N, T) or None.

    Args:
        kernels: the call, with all that does not get a gradient.
        portable: the same attention in plain TensorFlow: (inputs, bias, return_lse) to output and log-sum-exp.
        inputs: query, key and value, of one dtype.
        bias: (B or 1, N or 1, T or 1, S or 1) in the compute dtype, or None.
        return_lse: whether the log-sum-exp is wanted.
    """
    given = [*inputs, *([] if bias is None else [bias])]

    @tf.custom_gradient
    def op(*tensors: tf.Tensor) -> Any:
        stopped = [tf.stop_gradient(x) for x in tensors[:3]]
        output, lse = kernels.forward(*stopped)

        def gradient(*incoming: tf.Tensor) -> Any:
            if bias is not None:
                return _portable_gradient(portable, tensors, incoming)
            return differentiable_gradient(tensors, incoming, output, lse)

        return ((output, lse) if return_lse else output), gradient

    def differentiable_gradient(
        tensors: Sequence[tf.Tensor],
        incoming: Sequence[tf.Tensor],
        output: tf.Tensor,
        lse: tf.Tensor,
    ) -> Any:
        @tf.custom_gradient
        def gradient_op(*all_tensors: tf.Tensor) -> Any:
            stopped = [tf.stop_gradient(x) for x in all_tensors]
            lse_gradient = stopped[4] if return_lse else tf.zeros_like(lse)
            results = kernels.backward(*stopped[:3], output, lse, stopped[3], lse_gradient)

            def second(*cotangents: tf.Tensor) -> Any:
                with tf.GradientTape() as tape:
                    tape.watch(all_tensors)
                    first = _portable_gradient(portable, all_tensors[:3], all_tensors[3:])
                return tape.gradient(first, all_tensors, cotangents, unconnected_gradients="zero")

            return results, second

        return gradient_op(*tensors, *incoming)

    result = op(*given)
    return result if return_lse else (result, None)


def _portable_gradient(
    portable: Portable, tensors: Sequence[tf.Tensor], incoming: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Gradients of the portable form, themselves differentiable."""
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        bias = tensors[3] if len(tensors) > 3 else None
        output, lse = portable(tensors[:3], bias, len(incoming) > 1)
    results = [output, *([] if lse is None else [lse])]
    return tape.gradient(results, list(tensors), list(incoming), unconnected_gradients="zero")
