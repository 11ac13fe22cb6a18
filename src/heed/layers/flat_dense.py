"""Keras' Dense and EinsumDense as one product of two matrices, for inputs of any rank.

Keras computes inputs (B, T, D) by a batched product: B small products forward, and backward B gradients of the kernel,
(B, D, units) in memory, and their sum. As rows of one matrix (B T, D) they are one product each way.

Names and kernel shapes are Keras', so weights, files, LoRA and quantisation of keras.layers.MultiHeadAttention and
GroupQueryAttention work on heed's layer.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops


class _FlatProduct(keras.layers.Layer):
    """The call of both layers, without quantisation; everything else is Keras' own."""

    kernel: Any
    bias: Any
    activation: Any
    _contracted = 1  # the number of axes that the product sums over

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the product over the last axes of `inputs`, plus the bias, activated.

        Args:
            inputs: (..., *inner) floats, where `inner` are the first axes of the kernel.
            training: Has no effect.

        Returns:
            (..., *outer), where `outer` are the other axes of the kernel.
        """
        kernel = ops.convert_to_tensor(self.kernel)
        contracted = self._contracted
        inner, outer = kernel.shape[:contracted], kernel.shape[contracted:]
        rows = ops.reshape(inputs, (-1, math.prod(inner)))
        product = ops.matmul(rows, ops.reshape(kernel, (math.prod(inner), math.prod(outer))))
        if self.bias is not None:
            # A vector, which the backend fuses with the product.
            product = ops.add(product, ops.reshape(self.bias, (math.prod(outer),)))
        output = ops.reshape(product, (*_leading(inputs, contracted), *outer))
        return output if self.activation is None else self.activation(output)

    def quantize(self, *arguments: Any, **options: Any) -> None:
        """Do as Keras' method, without its check for subclasses."""
        super().quantize(*arguments, **{**options, "type_check": False})


@keras.saving.register_keras_serializable(package="heed")
class FlatDense(_FlatProduct, keras.layers.Dense):
    """`keras.layers.Dense`, `inputs @ kernel + bias`, as one product of two matrices.

    Arguments, variables, files, LoRA and quantisation are those of Keras' layer.

    Example:
        >>> import numpy as np
        >>> tuple(FlatDense(4)(np.zeros((2, 5, 8), "float32")).shape)
        (2, 5, 4)
    """


@keras.saving.register_keras_serializable(package="heed")
class FlatEinsumDense(_FlatProduct, keras.layers.EinsumDense):
    """`keras.layers.EinsumDense` over the last axes of its inputs, as one product of two matrices.

    Arguments, variables, files, LoRA and quantisation are those of Keras' layer.

    Args:
        equation: Of the form "...xy,xy...->...": the summed axes are the last of the inputs and, in the same order, the
            first of the kernel; the output has the remaining axes of both in their order. The bias has all remaining
            axes of the kernel.

    Raises:
        ValueError: For another equation.

    Example:
        >>> import numpy as np
        >>> layer = FlatEinsumDense("abc,cde->abde", output_shape=(None, 2, 4), bias_axes="de")
        >>> tuple(layer(np.zeros((2, 5, 8), "float32")).shape)
        (2, 5, 2, 4)
    """

    def __init__(self, equation: str, output_shape: Any, **kwargs: Any) -> None:
        super().__init__(equation, output_shape, **kwargs)
        inputs, kernel, output = equation.replace("->", ",").split(",")
        inner = kernel[: len(set(inputs) & set(kernel))]
        kept, outer = inputs.removesuffix(inner), kernel.removeprefix(inner)
        if f"{kept}{inner}" != inputs or f"{kept}{outer}" != output:
            raise ValueError(
                "`equation` must sum over the last axes of the inputs, which are the first of the kernel. "
                f"Received: equation={equation!r}"
            )
        if self.bias_axes not in (None, outer):
            raise ValueError(
                f"`bias_axes` must be {outer!r} or None. Received: bias_axes={self.bias_axes!r}"
            )
        self._contracted = len(inner)


def _leading(x: Any, dropped: int) -> tuple[Any, ...]:
    """Return the sizes of all but the last axes for a reshape, with -1 for one unknown size."""
    known = tuple(x.shape)[: len(x.shape) - dropped]
    if known.count(None) == 1 and 0 not in known:
        return tuple(-1 if size is None else size for size in known)
    return tuple(ops.shape(x)[: len(known)])


def clone_initializer(initializer: Any) -> Any:
    """Make a new initializer of the same config: one without a seed would give all its users the same values."""
    if isinstance(initializer, keras.initializers.Initializer):
        return initializer.__class__.from_config(initializer.get_config())
    return initializer


def projection(
    name: str,
    shape: Sequence[Any],
    contracted: int,
    width: Sequence[int],
    use_bias: bool,
    **options: Any,
) -> FlatEinsumDense:
    """Return a built layer that contracts the last axes of inputs of this shape with a kernel (..., *width).

    (B, ..., D) becomes (B, ..., N, H) with one axis contracted, (B, ..., N, V) becomes (B, ..., D) with two.
    """
    kept, rank = len(shape) - contracted, len(shape)
    letters = string.ascii_lowercase
    positions, inner, outer = letters[:kept], letters[kept:rank], letters[rank : rank + len(width)]
    layer = FlatEinsumDense(
        f"{positions}{inner},{inner}{outer}->{positions}{outer}",
        output_shape=(*(None,) * (kept - 1), *width),
        bias_axes=outer if use_bias else None,
        name=name,
        **options,
    )
    # Otherwise Keras warns that the projection destroys masks, which the attention layer handles.
    layer.supports_masking = True
    layer.build(shape)
    return layer


def compute_once(project: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function with a memory of its results by tensor, for one call of a layer."""
    made: dict[int, tuple[Any, Any]] = {}

    def projected(x: Any) -> Any:
        if id(x) not in made:
            made[id(x)] = (x, project(x))  # the tensor too: its id is unique while it lives
        return made[id(x)][1]

    return projected
