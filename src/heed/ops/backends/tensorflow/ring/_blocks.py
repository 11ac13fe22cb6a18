"""Attention of a stretch of queries to a stretch of keys: results that can be merged, and gradients.

Results of several stretches of keys merge by the log-sum-exp of each row. The gradient of one stretch of keys is that
of a whole call, given the output and softmax over all stretches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from heed.ops.backends.shared.block import Results, by_key_heads
from heed.ops.backends.tensorflow.native.implementation import part_gradients, run
from heed.ops.backends.tensorflow.portable.blockwise import backward, forward
from heed.ops.backends.tensorflow.portable.implementation import Portable
from heed.ops.spec import AttentionSpec, Tensors


class Part(NamedTuple):
    """The attention of queries to some of their keys."""

    output: tf.Tensor  # in the layout of the spec and its dtype
    # `level`, `total`: (B, N, T): the weights relative to e^level sum to `total`; -inf and 0 for a row that sees
    # nothing
    level: tf.Tensor
    total: tf.Tensor
    # (2, B, N, T), for the gradient: a score, and the sum of weights relative to it, both in units of the
    # implementation
    softmax: tf.Tensor

    @property
    def lse(self) -> tf.Tensor:
        """The log-sum-exp of each row, (B, N, T)."""
        return self.level + tf.math.log(self.total)


class Whole(NamedTuple):
    """The results over all keys, and their gradients."""

    # `softmax`, `output`: see `Part`, the latter in the dtype of the query
    softmax: tf.Tensor
    output: tf.Tensor
    output_gradient: tf.Tensor  # in the shape of the output
    lse_gradient: tf.Tensor  # (B, N, T), in the dtype of the spec


def merge(spec: AttentionSpec, first: Part | None, second: Part) -> Part:
    """Return the attention to the keys of both parts."""
    if first is None:
        return second
    zero = tf.zeros((), second.level.dtype)
    level = tf.maximum(first.level, second.level)
    base = tf.where(tf.equal(level, -math.inf), zero, level)
    weights = [part.total * tf.exp(part.level - base) for part in (first, second)]
    total = weights[0] + weights[1]
    some = tf.where(tf.equal(total, 0), tf.ones_like(total), total)
    shares = [_move_heads(spec, weight / some)[..., None] for weight in weights]
    output = first.output * shares[0] + second.output * shares[1]
    # The larger part's score: relative to it no weight overflows.
    second_larger = weights[1] > weights[0]
    score = tf.where(second_larger, second.softmax[0], first.softmax[0])
    own_sum = tf.where(second_larger, second.softmax[1], first.softmax[1])
    own_weight = tf.where(second_larger, weights[1], weights[0])
    grown = total / tf.where(tf.equal(own_weight, 0), tf.ones_like(own_weight), own_weight)
    return Part(output, level, total, tf.stack([score, own_sum * grown]))


def _move_heads(spec: AttentionSpec, x: tf.Tensor) -> tf.Tensor:
    """Return (B, N, T) with the axes in the order of the spec's layout, or that order as (B, N, T)."""
    return tf.transpose(x, (0, 2, 1)) if spec.heads_axis == 2 else x


def nothing(spec: AttentionSpec, tensors: Tensors) -> Part:
    """Return the part of queries that see no key."""
    shape = tf.shape(tensors.query)
    output = tf.zeros(tf.concat([shape[:-1], [spec.widths[1]]], 0), spec.dtype)
    output.set_shape([*tensors.query.shape[:-1], spec.widths[1]])
    rows = _move_heads(spec, output[..., 0])
    return Part(output, rows - math.inf, rows, tf.stack([rows, rows]))


class Blocks:
    """Parts and their gradients in plain TensorFlow."""

    def attend(self, spec: AttentionSpec, tensors: Tensors) -> Part:
        """Return the attention to the keys of `tensors`."""
        attention, operands = Portable().prepare(spec, tensors)
        output, *softmax = forward(attention, operands, "output", "row_max", "row_sum")
        row_max, total = (attention.join_heads(x)[..., 0] for x in softmax)
        level = tf.where(tf.equal(total, 0), tf.constant(-math.inf, total.dtype), row_max)
        output = _from_heads(spec, attention.join_heads(output))
        return Part(output, level, total, tf.stack([row_max, total]))

    def gradients(self, spec: AttentionSpec, tensors: Tensors, whole: Whole) -> Sequence[tf.Tensor]:
        """Return the gradients of query, key and value that come from the keys of `tensors`."""
        attention, operands = Portable().prepare(spec, tensors)

        def rows(x: tf.Tensor) -> tf.Tensor:
            """Map (B, N, T) to (B, K, G, T, 1)."""
            shape = tf.shape(x)
            return tf.reshape(x, tf.stack([shape[0], *attention.heads, shape[2], 1]))

        results = Results(
            by_key_heads(spec, whole.output),
            by_key_heads(spec, whole.output_gradient),
            rows(whole.lse_gradient),
            tf.concat([rows(x) for x in tf.unstack(whole.softmax)], -1),
        )
        query, key, value = backward(attention, operands, results)
        return [_from_heads(spec, x) for x in (attention.join_heads(query), key, value)]


class NativeBlocks(Blocks):
    """Parts and their gradients by the native kernels."""

    def attend(self, spec: AttentionSpec, tensors: Tensors) -> Part:
        output, lse, softmax = run(spec, tensors)
        softmax = tf.reshape(softmax, tf.concat([[2], tf.shape(lse)], 0))
        softmax.set_shape([2, *lse.shape])
        level, total = lse, tf.cast(tf.not_equal(lse, -math.inf), lse.dtype)
        if tensors.query.dtype == lse.dtype:
            # The scores of kernels for smaller dtypes have a unit of their own. A log-sum-exp is less exact.
            level = tf.where(tf.equal(softmax[1], 0), level, softmax[0])
            total = softmax[1]
        return Part(tf.cast(output, spec.dtype), level, total, softmax)

    def gradients(self, spec: AttentionSpec, tensors: Tensors, whole: Whole) -> Sequence[tf.Tensor]:
        received = whole._replace(softmax=tf.reshape(whole.softmax, [-1]))
        return part_gradients(spec, tensors, **received._asdict())


def _from_heads(spec: AttentionSpec, x: tf.Tensor) -> tf.Tensor:
    """Return (B, N, T, V) in the layout of the spec."""
    return tf.transpose(x, (0, 2, 1, 3)) if spec.heads_axis == 2 else x
