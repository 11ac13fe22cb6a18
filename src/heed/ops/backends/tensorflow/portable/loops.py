"""Loops over blocks, plain Python for a single block, else one `tf.while_loop`; and how their results combine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from heed.ops.sizes import Size, Span, is_static, maximum, slice_axis

State = Any  # a list or dictionary of tensors and lists of tensors


def loop(first: Size, last: Size, body: Callable[[Size, State], State], state: State) -> State:
    """`state = body(index, state)` for each index from first to last - 1, in order."""
    if is_static(first, last) and last - first <= 1:
        return body(first, state) if last > first else state

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
    """The sum of the results of all blocks; each is a tensor like `like`."""

    like: tf.Tensor

    def start(self) -> tf.Tensor:
        """The initial state of the loop."""
        return tf.zeros_like(self.like)

    def add(self, total: tf.Tensor, index: Size, new: tf.Tensor) -> tf.Tensor:
        """The state after a block."""
        return total + new

    def finish(self, total: tf.Tensor) -> tf.Tensor:
        """The result."""
        return total


@dataclasses.dataclass(frozen=True)
class SideBySide:
    """The results of the blocks, side by side along an axis; the last block may overlap the previous one.

    Attributes:
        count: the number of blocks, each of `shape`.
        length: of the result along `axis`.
        sparse: a block without a result counts as zeros.
        summed: a block may have several results, which are added.
    """

    count: Size
    length: Size
    axis: int
    shape: list[Size]
    dtype: tf.DType
    sparse: bool = False
    summed: bool = False

    def start(self) -> tf.TensorArray:
        """The initial state of the loop."""
        if is_static(self.count) and not (self.sparse or self.summed):
            return tf.TensorArray(self.dtype, size=self.count, clear_after_read=False)
        # At least one, as an empty list cannot be stacked; `finish` cuts it away.
        count = maximum(1, self.count)
        known = [n if isinstance(n, int) else None for n in self.shape]
        array = tf.TensorArray(self.dtype, size=count, clear_after_read=False, element_shape=known)
        return array.unstack(tf.zeros(tf.stack([count, *self.shape]), self.dtype))

    def add(self, blocks: tf.TensorArray, index: Size, new: tf.Tensor) -> tf.TensorArray:
        """The state after a block."""
        return blocks.write(index, blocks.read(index) + new if self.summed else new)

    def finish(self, blocks: tf.TensorArray) -> tf.Tensor:
        """The result."""
        if is_static(self.count) and self.count == 1:
            return blocks.read(0)
        count, axis, block = maximum(1, self.count), self.axis, self.shape[self.axis]
        order = [*range(1, axis + 1), 0, *range(axis + 1, len(self.shape) + 1)]
        joined = [*self.shape[:axis], count * block, *self.shape[axis + 1 :]]
        result = tf.reshape(tf.transpose(blocks.stack(), order), tf.stack(joined))
        if is_static(self.length, block) and self.length % block == 0:
            return result
        before = maximum(0, (count - 1) * block)
        rest = self.length - before
        last = slice_axis(result, axis, count * block - rest, rest)
        return tf.concat([slice_axis(result, axis, 0, before), last], axis)


Totals = Mapping[str, "Sum | SideBySide"]


def start(totals: Totals) -> dict[str, Any]:
    """The initial state of the loop."""
    return {name: total.start() for name, total in totals.items()}


def add(totals: Totals, state: State, index: Size, new: Mapping[str, Any]) -> dict[str, Any]:
    """The state after a block."""
    return {name: total.add(state[name], index, new[name]) for name, total in totals.items()}


def finish(totals: Totals, state: State) -> dict[str, tf.Tensor]:
    """The results."""
    return {name: total.finish(state[name]) for name, total in totals.items()}


def put(x: tf.Tensor, axis: int, span: Span, length: Size) -> tf.Tensor:
    """`x` at `span` within zeros of the given length."""
    if is_static(span.begin, span.length, length) and span.length == length:
        return x
    paddings: list[list[Size]] = [[0, 0] for _ in range(x.shape.rank)]
    paddings[axis] = [span.begin, length - span.end]
    return tf.pad(x, paddings)
