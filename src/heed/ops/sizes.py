"""Sizes: Python integers where the shape is known, else tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

from keras import ops

Size = Any  # int, or an int32 scalar tensor


class Span(NamedTuple):
    """A run of consecutive positions on one axis."""

    begin: Size
    length: Size

    @property
    def end(self) -> Size:
        """One past the last position."""
        return self.begin + self.length

    @property
    def positions(self) -> Any:
        """The positions, (length,)."""
        return self.begin + ops.arange(self.length, dtype="int32")


def shape_of(x: Any) -> tuple[int | None, ...] | None:
    """Return the shape, with None for lengths that are not known while tracing; None for an unknown rank."""
    shape = x.shape
    if shape is None:
        return None
    try:
        # A third of the time of reading TensorFlow's shapes otherwise.
        return tuple(shape.as_list() if hasattr(shape, "as_list") else shape)
    except ValueError:  # TensorFlow: unknown rank
        return None


def size(x: Any, axis: int) -> Size:
    """Return the length of one axis: an int if known while tracing, else a scalar tensor."""
    static = x.shape[axis]
    return ops.shape(x)[axis] if static is None else static


def sizes(x: Any) -> list[Size]:
    """Return the length of each axis."""
    return [size(x, axis) for axis in range(len(x.shape))]


def is_static(*values: Size) -> bool:
    """Return whether all sizes are known while tracing."""
    return all(isinstance(value, int) for value in values)


def minimum(a: Size, b: Size) -> Size:
    """Return the smaller one."""
    return min(a, b) if is_static(a, b) else ops.minimum(a, b)


def maximum(a: Size, b: Size) -> Size:
    """Return the larger one."""
    return max(a, b) if is_static(a, b) else ops.maximum(a, b)


def ceil_div(a: Size, b: Size) -> Size:
    """Return a / b, rounded up."""
    return -(-a // b)


def slice_axis(x: Any, axis: int, begin: Size, length: Size) -> Any:
    """Return `x[..., begin:begin + length, ...]` with a fixed length, as XLA needs it."""
    shape = sizes(x)
    axis %= len(shape)
    if is_static(begin, length, shape[axis]) and begin == 0 and length == shape[axis]:
        return x
    begins: list[Size] = [0] * len(shape)
    begins[axis] = begin
    shape[axis] = length
    block = ops.slice(x, begins, shape)
    # A slice loses its static shape when its begin is a tensor.
    return block if is_static(begin, *shape) else ops.reshape(block, shape)
