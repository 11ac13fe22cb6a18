"""The fused row-wise ops with the native kernels, as differentiable functions.

The kernels compute first derivatives; second derivatives come from the portable form, applied to the inputs of the op.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from heed.ops import checks
from heed.ops.backends.tensorflow.derivatives import differentiate_twice, register_gradient
from heed.ops.backends.tensorflow.native import library
from heed.ops.backends.tensorflow.portable.implementation import PortableFusedOps

# With more rows TensorFlow's own product, which is blocked for the cache, is as fast.
_FEW_ROWS = 16


# Fields as in `native/adapters/tensorflow/row_ops.cc` and `decode_ops.cc`.
CrossEntropySettings = namedtuple("CrossEntropySettings", "threads ignored")
NormalizationSettings = namedtuple("NormalizationSettings", "threads epsilon rms")
DropoutSettings = namedtuple("DropoutSettings", "threads rate")
ProductSettings = namedtuple("ProductSettings", "threads transposed")


class NativeFusedOps(PortableFusedOps):
    """Fused row-wise ops with the native kernels."""

    def cross_entropy(
        self, logits: tf.Tensor, labels: tf.Tensor, smoothing: float, ignored: int
    ) -> tf.Tensor:
        smooth = np.array(smoothing, checks.compute_type(logits.dtype.name))
        losses, _ = library.ops().heed_cross_entropy(
            logits=logits,
            labels=labels,
            smoothing=smooth,
            form=_form(CrossEntropySettings, ignored),
        )
        return losses

    def normalization(
        self,
        x: tf.Tensor,
        scale: tf.Tensor | None,
        offset: tf.Tensor | None,
        epsilon: float,
        rms: bool,
    ) -> tf.Tensor:
        none = np.zeros(0, checks.compute_type(x.dtype.name))
        scale, offset = (none if vector is None else vector for vector in (scale, offset))
        y, _ = library.ops().heed_normalization(
            x=x, scale=scale, offset=offset, form=_form(NormalizationSettings, epsilon, rms)
        )
        return y

    def dropout(
        self, x: tf.Tensor, residual: tf.Tensor | None, rate: float, seed: tf.Tensor
    ) -> tf.Tensor:
        residuals = [] if residual is None else [residual]
        return library.ops().heed_dropout(
            x=x, seed=seed, residual=residuals, form=_form(DropoutSettings, rate)
        )

    def product(self, x: tf.Tensor, weights: tf.Tensor, transposed: bool) -> tf.Tensor | None:
        rows = x.shape[0]
        if rows is None or rows > _FEW_ROWS or 0 in x.shape or 0 in weights.shape:
            return None
        y = library.ops().heed_product(
            x=x, weights=weights, form=_form(ProductSettings, transposed)
        )
        y.set_shape((rows, weights.shape[0], weights.shape[1 if transposed else 2]))
        return y

    def write(self, cache: tf.Tensor, update: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        return library.ops().heed_cache_write(cache=cache, update=update, index=index)


def _form(fields: Callable[..., Any], *numbers: float) -> bytes:
    """Return the form of an op: the number of threads, then its own numbers."""
    return np.array(fields(library.threads(), *numbers), np.float64).tobytes()


def _read(fields: Callable[..., Any], op: tf.Operation) -> Any:
    """Return the numbers of the form of an op."""
    return fields(*np.frombuffer(op.get_attr("form")).tolist())


@register_gradient("HeedCrossEntropy")
def _of_cross_entropy(op: tf.Operation, losses_gradient: tf.Tensor, _: Any) -> list[Any]:
    logits, labels, smoothing = op.inputs
    gradient = library.ops().heed_cross_entropy_gradient(
        logits=logits,
        labels=labels,
        smoothing=smoothing,
        softmax=op.outputs[1],
        losses_gradient=losses_gradient,
        form=op.get_attr("form"),
    )
    return [gradient, None, None]


@register_gradient("HeedCrossEntropyGradient")
def _of_cross_entropy_gradient(op: tf.Operation, cotangent: tf.Tensor) -> list[Any]:
    logits, labels, smoothing, _, incoming = op.inputs
    ignored = int(_read(CrossEntropySettings, op).ignored)

    def losses(logits: tf.Tensor) -> tf.Tensor:
        return PortableFusedOps().cross_entropy(logits, labels, smoothing, ignored)

    of_logits, of_incoming = differentiate_twice(losses, [logits], [incoming], [cotangent])
    # The softmax is a function of the logits, whose gradient is complete.
    return [of_logits, None, None, None, of_incoming]


@register_gradient("HeedNormalization")
def _of_normalization(op: tf.Operation, y_gradient: tf.Tensor, _: Any) -> list[Any]:
    x, scale, offset = op.inputs
    # Of a vector that is empty, for none, the gradient is empty, too.
    return library.ops().heed_normalization_gradient(
        x=x,
        scale=scale,
        offset=offset,
        moments=op.outputs[1],
        y_gradient=y_gradient,
        form=op.get_attr("form"),
    )


@register_gradient("HeedNormalizationGradient")
def _of_normalization_gradient(op: tf.Operation, *cotangents: tf.Tensor) -> list[Any]:
    *operands, _, incoming = op.inputs
    settings = _read(NormalizationSettings, op)

    def normalization(x: tf.Tensor, *vectors: tf.Tensor) -> tf.Tensor:
        scale, offset = (None if v.shape.num_elements() == 0 else v for v in vectors)
        return PortableFusedOps().normalization(
            x, scale, offset, settings.epsilon, settings.rms != 0
        )

    *gradients, of_incoming = differentiate_twice(normalization, operands, [incoming], cotangents)
    # The moments are functions of x, whose gradient is complete.
    return [*gradients, None, of_incoming]


@register_gradient("HeedDropout")
def _of_dropout(op: tf.Operation, y_gradient: tf.Tensor) -> list[Any]:
    """Return the same dropout of the incoming gradient, which also gives second derivatives."""
    _, seed, *residual = op.inputs
    of_x = library.ops().heed_dropout(
        x=y_gradient, seed=seed, residual=[], form=op.get_attr("form")
    )
    return [of_x, None, *[y_gradient] * len(residual)]


@register_gradient("HeedProduct")
def _of_product(op: tf.Operation, y_gradient: tf.Tensor) -> list[Any]:
    """Compute in plain TensorFlow, for second derivatives."""
    x, weights = op.inputs
    letters = "gnk" if _read(ProductSettings, op).transposed else "gkn"
    return [
        tf.einsum(f"rgn,{letters}->rk", y_gradient, weights),
        tf.einsum(f"rgn,rk->{letters}", y_gradient, x),
    ]


@register_gradient("HeedCacheWrite")
def _of_cache_write(op: tf.Operation, gradient: tf.Tensor) -> list[Any]:
    """Give overwritten entries of the cache 0; the update gets the gradient of its entries."""
    cache, update, index = op.inputs
    length, written = tf.shape(cache)[1], tf.shape(update)
    index = tf.clip_by_value(index, 0, length - written[1])
    positions = tf.range(length) - index
    over = tf.logical_and(positions >= 0, positions < written[1])
    over = tf.reshape(over, [-1, *[1] * (len(cache.shape) - 2)])
    of_cache = tf.where(over, tf.zeros((), gradient.dtype), gradient)
    begin = tf.one_hot(1, len(cache.shape), index)
    return [of_cache, tf.slice(gradient, begin, written), None]
