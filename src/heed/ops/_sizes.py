"""Sizes that are Python integers where the shape is known and tensors where it is not."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

Size = Any  # int, or an int32 scalar tensor


class Span(NamedTuple):
    """A run of consecutive positions on one axis."""

    begin: Size
    length: Size

    @property
    def end(self) -> Size:
        return self.begin + self.length

    @property
    def positions(self) -> tf.Tensor:
        return self.begin + tf.range(self.length)


def size(x: tf.Tensor, axis: int) -> Size:
    """The length of one axis: an int if known while tracing, else a scalar tensor."""
    static = x.shape[axis]
    return tf.shape(x)[axis] if static is None else static


def sizes(x: tf.Tensor) -> list[Size]:
    return [size(x, axis) for axis in range(x.shape.rank)]


def is_static(*values: Size) -> bool:
    return all(isinstance(value, int) for value in values)


def minimum(a: Size, b: Size) -> Size:
    return min(a, b) if is_static(a, b) else tf.minimum(a, b)


def maximum(a: Size, b: Size) -> Size:
    return max(a, b) if is_static(a, b) else tf.maximum(a, b)


def ceil_div(a: Size, b: Size) -> Size:
    return -(-a // b)


def slice_axis(x: tf.Tensor, axis: int, begin: Size, length: Size) -> tf.Tensor:
    """`x[..., begin:begin + length, ...]` with a fixed length, which XLA can compile."""
    shape = sizes(x)
    axis %= len(shape)
    if is_static(begin, length, shape[axis]) and begin == 0 and length == shape[axis]:
        return x
    begins: list[Size] = [0] * len(shape)
    begins[axis] = begin
    shape[axis] = length
    block = tf.slice(x, tf.stack(begins), tf.stack(shape))
    # tf.slice forgets what is known of the shape when one begin is a tensor.
    return tf.ensure_shape(block, [n if isinstance(n, int) else None for n in shape])
