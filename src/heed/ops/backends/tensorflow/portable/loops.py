"""Loops over blocks: plain Python for a single block, else one `tf.while_loop` that runs its turns in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from heed.ops.sizes import Size, Span, is_static, maximum, slice_axis

State = list[Any]


def loop(
    first: Size, last: Size, body: Callable[[Size, State], Sequence[Any]], state: State
) -> State:
    """`state = body(index, state)` for each index from first to last - 1."""
    if is_static(first, last) and last - first <= 1:
        return list(body(first, state)) if last > first else state

    def turn(index: tf.Tensor, *current: Any) -> tuple[Any, ...]:
        following = body(index, list(current))
        for new, old in zip(following, current, strict=True):
            if isinstance(new, tf.Tensor) and not tf.executing_eagerly():
                new.set_shape(old.shape)
        return (index + 1, *following)

    # One turn at a time: the others would only hold their blocks in memory.
    result = tf.while_loop(
        lambda index, *_: index < last,
        turn,
        (tf.convert_to_tensor(first), *state),
        parallel_iterations=1,
    )
    return list(result[1:])


def block_list(count: Size, shape: Sequence[Size] | None, dtype: tf.DType) -> tf.TensorArray:
    """A list of `count` blocks; where `shape` is given, each begins as zeros of it."""
    if shape is None:
        return tf.TensorArray(dtype, size=count, clear_after_read=False)
    # At least one, for a list of none cannot be stacked; `join` cuts it away.
    count = maximum(1, count)
    known = [n if isinstance(n, int) else None for n in shape]
    array = tf.TensorArray(dtype, size=count, clear_after_read=False, element_shape=known)
    return array.unstack(tf.zeros(tf.stack([count, *shape]), dtype))


def join(
    blocks: tf.TensorArray, count: Size, length: Size, axis: int, shape: Sequence[Size]
) -> tf.Tensor:
    """Blocks, of which the last may overlap the one before it, side by side along `axis`.

    Args:
        blocks: `count` of them, each of shape `shape`.
        length: of the result along `axis`.
    """
    if is_static(count) and count == 1:
        return blocks.read(0)
    count = maximum(1, count)
    block = shape[axis]
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1)]
    joined = list(shape)
    joined[axis] = count * block
    result = tf.reshape(tf.transpose(blocks.stack(), order), tf.stack(joined))
    if is_static(length, block) and length % block == 0:
        return result
    before = maximum(0, (count - 1) * block)
    rest = length - before
    return tf.concat(
        [slice_axis(result, axis, 0, before), slice_axis(result, axis, count * block - rest, rest)],
        axis,
    )


def put(x: tf.Tensor, axis: int, span: Span, length: Size) -> tf.Tensor:
    """`x` at `span` within zeros of a given length."""
    if is_static(span.begin, span.length, length) and span.length == length:
        return x
    paddings: list[list[Size]] = [[0, 0] for _ in range(x.shape.rank)]
    paddings[axis] = [span.begin, length - span.end]
    return tf.pad(x, paddings)
