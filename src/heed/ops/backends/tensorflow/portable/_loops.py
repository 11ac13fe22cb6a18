"""Loops over blocks: plain Python where code runs step by step, else `tf.while_loop`; and how their results combine."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from heed.ops.sizes import Size, Span, ceil_div, is_static, maximum, minimum, size, slice_axis

# Copies of so few pieces are no loop.
_UNROLLED = 32
State = Any  # a list or dictionary of tensors and lists of tensors


def loop(first: Size, last: Size, body: Callable[[Size, State], State], state: State) -> State:
    """Return the state after `state = body(index, state)` for each index from first to last - 1, in order."""
    if is_static(first, last) and (last - first <= 1 or tf.executing_eagerly()):
        for index in range(first, last):
            state = body(index, state)
        return state

    def keep_shape(new: Any, old: Any) -> None:
        if isinstance(new, tf.Tensor) and not tf.executing_eagerly():
            new.set_shape(old.shape)

    def step(index: tf.Tensor, current: State) -> tuple[tf.Tensor, State]:
        following = body(index, current)
        tf.nest.map_structure(keep_shape, following, current)
        return index + 1, following

    # One step at a time: parallel steps would hold more blocks in memory.
    begin = (tf.convert_to_tensor(first), state)
    return tf.while_loop(lambda index, _: index < last, step, begin, parallel_iterations=1)[1]


@dataclasses.dataclass(frozen=True)
class Sum:
    """The sum of the results of all blocks; each is a tensor of one shape."""

    shape: list[Size]
    dtype: tf.DType

    def start(self) -> tf.Tensor:
        """Return the initial state of the loop."""
        return tf.zeros(tf.stack(self.shape) if self.shape else (), self.dtype)

    def add(self, total: tf.Tensor, index: Size, new: tf.Tensor, keys: Span) -> tf.Tensor:
        """Return the state after a block."""
        return total + new

    def finish(self, total: tf.Tensor) -> tf.Tensor:
        """Return the result."""
        return total


@dataclasses.dataclass(frozen=True)
class SideBySide:
    """The results of blocks of queries, side by side along an axis; the last block may overlap the previous one."""

    count: Size  # the number of blocks
    length: Size  # of the result along `axis`
    axis: int  # that of the queries
    shape: list[Size] | None  # of a block; None where blocks differ, which are known then
    dtype: tf.DType

    def start(self) -> tf.TensorArray:
        return _blocks(self.count, self.shape, self.dtype, filled=not is_static(self.count))

    def add(self, blocks: tf.TensorArray, index: Size, new: tf.Tensor, keys: Span) -> Any:
        return blocks.write(index, new)

    def finish(self, blocks: tf.TensorArray) -> tf.Tensor:
        if is_static(self.count) and (self.shape is None or self.count == 1):
            return tf.concat([blocks.read(i) for i in range(self.count)], self.axis)
        return _join(blocks, maximum(1, self.count), self.shape, self.axis, self.length)


@dataclasses.dataclass(frozen=True)
class Scattered:
    """The sum of results of blocks of keys that begin at multiples of a step."""

    step: int  # the step
    length: Size  # of the result along `axis`
    axis: int  # that of the keys
    shape: list[Size]  # of a piece of so many keys
    dtype: tf.DType

    @property
    def _count(self) -> Size:
        return ceil_div(self.length, self.step)

    def start(self) -> tf.TensorArray:
        return _blocks(self._count, self.shape, self.dtype, filled=True)

    def add(self, pieces: tf.TensorArray, index: Size, new: tf.Tensor, keys: Span) -> Any:
        first = keys.begin // self.step

        def body(place: Size, pieces: tf.TensorArray) -> tf.TensorArray:
            begin = place * self.step
            length = minimum(self.step, keys.length - begin)
            piece = put(slice_axis(new, self.axis, begin, length), self.axis, 0, self.step)
            return pieces.write(first + place, pieces.read(first + place) + piece)

        count = ceil_div(keys.length, self.step)
        if is_static(count) and count <= _UNROLLED:
            return functools.reduce(lambda state, place: body(place, state), range(count), pieces)
        return loop(0, count, body, pieces)

    def finish(self, pieces: tf.TensorArray) -> tf.Tensor:
        count = maximum(1, self._count)
        whole = _join(pieces, count, self.shape, self.axis, count * self.step)
        return slice_axis(whole, self.axis, 0, self.length)


def put(x: tf.Tensor, axis: int, begin: Size, length: Size) -> tf.Tensor:
    """Return `x` from a position on within zeros of the given length."""
    have = size(x, axis)
    if is_static(begin, have, length) and have == length:
        return x
    # Compilers know the paddings alone.
    before = begin if is_static(begin) else 0
    paddings: list[list[Size]] = [[0, 0] for _ in range(x.shape.rank)]
    paddings[axis] = [before, length - have - before]
    x = tf.pad(x, paddings)
    x = x if is_static(begin) else tf.roll(x, begin, axis)
    x.set_shape([*x.shape[:axis], length if is_static(length) else None, *x.shape[axis + 1 :]])
    return x


def _blocks(
    count: Size, shape: list[Size] | None, dtype: tf.DType, *, filled: bool
) -> tf.TensorArray:
    """Return room for tensors, of zeros if filled. Compilers have to know the shape of empty room."""
    sizes = shape or []
    known = None if shape is None else [n if isinstance(n, int) else None for n in sizes]
    if not filled:
        like = {"infer_shape": shape is not None, "element_shape": known}
        return tf.TensorArray(dtype, size=count, clear_after_read=False, **like)
    # At least one, as an empty list cannot be stacked; `finish` cuts it away.
    count = maximum(1, count)
    array = tf.TensorArray(dtype, size=count, clear_after_read=False, element_shape=known)
    return array.unstack(tf.zeros(tf.stack([count, *sizes]), dtype))


def _join(
    blocks: tf.TensorArray, count: Size, shape: list[Size] | None, axis: int, length: Size
) -> tf.Tensor:
    """Return blocks of one shape side by side along an axis, the last of which ends at the given length."""
    sizes = shape or []
    block = sizes[axis]
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(sizes) + 1)]
    joined = [*sizes[:axis], count * block, *sizes[axis + 1 :]]
    result = tf.reshape(tf.transpose(blocks.stack(), order), tf.stack(joined))
    if is_static(length, block) and length % block == 0:
        return result
    before = maximum(0, (count - 1) * block)
    rest = length - before
    last = slice_axis(result, axis, count * block - rest, rest)
    return tf.concat([slice_axis(result, axis, 0, before), last], axis)
