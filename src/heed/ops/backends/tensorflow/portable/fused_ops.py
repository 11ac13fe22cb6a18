"""The fused row-wise ops in plain TensorFlow: for every device, for XLA, and for second derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from heed.ops import checks
from heed.ops.backends import NO_LABEL
from heed.ops.backends.tensorflow.portable.dropout import keep_mask
from heed.ops.sizes import Span


class PortableFusedOps:
    """See `FusedOps`; numbers may be tensors () here."""

    def cross_entropy(
        self, logits: tf.Tensor, labels: tf.Tensor, smoothing: Any, ignored: Any
    ) -> tf.Tensor:
        """See `FusedOps`."""
        classes = tf.shape(logits)[-1]
        counts = tf.not_equal(labels, ignored)
        fits = tf.logical_and(labels >= 0, labels < classes)
        text = [
            "`labels` must be in [0, ",
            classes,
            "), or `ignore_class`. Received: labels ",
            labels,
        ]
        may_be = tf.logical_and(tf.logical_not(counts), tf.not_equal(labels, NO_LABEL))
        met = tf.reduce_all(tf.logical_or(fits, may_be))
        with tf.control_dependencies([tf.raw_ops.Assert(condition=met, data=text, summarize=9)]):
            x = _widen(logits)
        # First of all, so that NaN in ignored rows stays out of gradients, too.
        x = tf.where(counts[..., None], x, tf.zeros((), x.dtype))
        # Relative to the largest logit, which cancels out and so gets no gradient.
        below = tf.stop_gradient(tf.reduce_max(x, -1, keepdims=True)) - x
        right = tf.equal(tf.range(classes), labels[..., None])
        of_label = tf.reduce_sum(tf.where(right, below, tf.zeros((), x.dtype)), -1)
        smoothing = _number(smoothing, x.dtype)
        spread = tf.math.multiply_no_nan(tf.reduce_mean(below, -1), smoothing)
        losses = (
            tf.math.log(tf.reduce_sum(tf.exp(-below), -1)) + (1 - smoothing) * of_label + spread
        )
        return tf.where(counts, losses, tf.zeros((), x.dtype))

    def normalization(
        self,
        x: tf.Tensor,
        scale: tf.Tensor | None,
        offset: tf.Tensor | None,
        epsilon: Any,
        rms: Any,
    ) -> tf.Tensor:
        """See `FusedOps`."""
        y = _widen(x)
        if rms is not True:
            mean = tf.reduce_mean(y, -1, keepdims=True)
            y -= mean if rms is False else tf.where(rms, tf.zeros_like(mean), mean)
        square = tf.reduce_mean(tf.square(y), -1, keepdims=True)
        y *= tf.math.rsqrt(square + _number(epsilon, y.dtype))
        if scale is not None:
            y *= scale
        if offset is not None:
            y += offset
        return tf.cast(y, x.dtype)

    def dropout(
        self, x: tf.Tensor, residual: tf.Tensor | None, rate: float, seed: tf.Tensor
    ) -> tf.Tensor:
        """See `FusedOps`."""
        shape = tf.shape(x)
        rows, columns = Span(0, tf.reduce_prod(shape[:-1])), Span(0, shape[-1])
        # The mask of attention in head 0 of batch entry 0, with rows for queries and columns for keys.
        keep = tf.reshape(keep_mask(rate, seed, 1, 1, rows, columns), shape)
        wide = _widen(x)
        factor = _number(1 / (1 - rate), wide.dtype)
        y = tf.where(keep, wide * factor, tf.zeros((), wide.dtype))
        return tf.cast(y if residual is None else _widen(residual) + y, x.dtype)

    def product(self, x: tf.Tensor, weights: tf.Tensor, transposed: bool) -> tf.Tensor | None:
        """See `FusedOps`."""
        return None

    def write(self, cache: tf.Tensor, update: tf.Tensor, index: tf.Tensor) -> tf.Tensor | None:
        """See `FusedOps`."""
        return None

    def argmax(self, x: tf.Tensor) -> tf.Tensor:
        """See `FusedOps`."""
        return tf.argmax(x, -1, tf.int32)


def _widen(x: tf.Tensor) -> tf.Tensor:
    """`x` in the type of computation."""
    return tf.cast(x, checks.compute_type(x.dtype.name))


def _number(value: Any, dtype: tf.DType) -> tf.Tensor:
    """A constant with all its digits. TensorFlow would keep a Python number forever."""
    if isinstance(value, tf.Tensor):
        return tf.cast(value, dtype)
    return tf.constant(np.array(value, dtype.as_numpy_dtype))
