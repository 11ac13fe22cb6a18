"""Objects that take the place of a tensor until one is needed.

`CacheParts`: KerasHub keeps the keys and values of all layers in one tensor (B, layers, 2, S, N, H). A step slices out
those of each layer, writes one position, and stacks all of them again, which copies the cache several times for every
token. Indexing `CacheParts` and stacking its parts give parts again, and nothing is copied.

`RepeatedRows`: KerasHub repeats keys and values of a source for every beam of a search, in every step. Here the beams
of a source become several queries of one row, and nothing is copied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from keras import ops

from heed.acceleration.hub import _notes

# Marks tensors that are parts of a cache, so that stacking them makes one.
_NOTE = "_heed_part_of_cache"


class StandIn(ABC):
    """What stands for a tensor, to which the framework of Keras' backend converts it."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int | None, ...]:
        """The shape of the tensor."""

    @property
    @abstractmethod
    def dtype(self) -> Any:
        """The dtype of the tensor."""

    @abstractmethod
    def to_tensor(self) -> Any:
        """Make the tensor, which copies its numbers."""

    @property
    def ndim(self) -> int:
        """The number of axes of the tensor."""
        return len(self.shape)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        """Return the tensor, for TensorFlow."""
        made = self.to_tensor()
        return made if dtype is None else ops.cast(made, dtype.name)

    def __jax_array__(self) -> Any:
        """Return the tensor, for JAX."""
        return self.to_tensor()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return the tensor as an array, which PyTorch converts."""
        made = ops.convert_to_numpy(self.to_tensor())
        return made if dtype is None else made.astype(dtype)


class RepeatedRows(StandIn):
    """A stand-in for `keras.ops.repeat(tensor, repeats, axis=0)`.

    Args:
        tensor: (B, ...) with known sizes.
        repeats: R, how many rows take the place of each.
    """

    def __init__(self, tensor: Any, repeats: int) -> None:
        self.tensor, self.repeats = tensor, repeats

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of the repeated tensor."""
        rows, *others = self.tensor.shape
        return (None if rows is None else rows * self.repeats, *others)

    @property
    def dtype(self) -> Any:
        """The dtype of the tensor."""
        return self.tensor.dtype

    def to_tensor(self) -> Any:
        """Copy the rows into one tensor."""
        return ops.repeat(ops.convert_to_tensor(self.tensor), self.repeats, axis=0)


class CacheParts(StandIn):
    """A stand-in for `keras.ops.stack(parts, axis)`.

    Args:
        parts: tensors, or other `CacheParts`, of one shape and dtype.
        axis: the axis along which they would be stacked.
    """

    def __init__(self, parts: Sequence[Any], axis: int) -> None:
        self.parts, self.axis = tuple(parts), axis

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of the stacked tensor."""
        shape = tuple(self.parts[0].shape)
        return (*shape[: self.axis], len(self.parts), *shape[self.axis :])

    @property
    def dtype(self) -> Any:
        """The dtype of the parts."""
        return self.parts[0].dtype

    def to_tensor(self) -> Any:
        """Copy the parts into one tensor."""
        parts = [ops.convert_to_tensor(part) for part in self.parts]
        # Not `ops.stack`, which would make `CacheParts` of them.
        return ops.concatenate([ops.expand_dims(part, self.axis) for part in parts], self.axis)

    def repeat(self, repeats: int) -> CacheParts:
        """Return the parts with each row R times, without a copy."""
        nested = (isinstance(part, CacheParts) for part in self.parts)
        return CacheParts(
            [
                part.repeat(repeats) if within else RepeatedRows(part, repeats)
                for part, within in zip(self.parts, nested, strict=True)
            ],
            self.axis,
        )

    def __getitem__(self, index: Any) -> Any:
        """Return a part, if `index` selects a whole one; otherwise a slice of the stacked tensor."""
        indices = index if isinstance(index, tuple) else (index,)
        before, rest = indices[: self.axis], indices[self.axis :]
        whole = all(x is Ellipsis or _is_all(x) for x in rest[1:])
        if all(_is_all(x) for x in before) and rest and type(rest[0]) is int and whole:
            return mark_as_part(self.parts[rest[0]])
        return self.to_tensor()[index]


def _is_all(index: Any) -> bool:
    return isinstance(index, slice) and index == slice(None)


def mark_as_part(x: Any) -> Any:
    """Mark `x` as a part of a cache, and return it."""
    if not isinstance(x, CacheParts):
        _notes.attach(x, _NOTE, True)
    return x


def is_part(x: Any) -> bool:
    """Return whether `x` is a part of a cache, or consists of such parts."""
    return isinstance(x, CacheParts) or _notes.read(x, _NOTE, False)


def _keep(x: Any) -> Any:
    return x


def merge_queries(
    query: Any, key: Any, value: Any, mask: Any
) -> tuple[Any, Any, Any, Any, Callable[[Any], Any]]:
    """Turn the single queries of R rows that share their keys into R queries of one row.

    Args:
        query: (B R, 1, N, H).
        key, value: `RepeatedRows` of (B, S, N, H); for other tensors nothing changes.
        mask: (B R, ..., 1, S), or None.

    Returns:
        Query (B, R, N, H), key and value (B, S, N, H), mask (B, ..., R, S), and the function that turns an output
        (B, R, N, V) into (B R, 1, N, V).
    """
    if not isinstance(key, RepeatedRows) or not isinstance(value, RepeatedRows):
        return query, key, value, mask, _keep
    rows, length = query.shape[:2]
    ones = None if mask is None else tuple(mask.shape[:-1])
    fits = ones is None or ones == (rows, *[1] * (len(ones) - 1))
    if rows is None or length != 1 or not fits:
        return query, ops.convert_to_tensor(key), ops.convert_to_tensor(value), mask, _keep
    merged = (rows // key.repeats, key.repeats)
    if mask is not None:
        middle = tuple(mask.shape[1:-2])
        mask = ops.reshape(mask, (merged[0], *middle, merged[1], ops.shape(mask)[-1]))

    def split(output: Any) -> Any:
        return ops.reshape(output, (rows, 1, *output.shape[2:]))

    query = ops.reshape(query, (*merged, *query.shape[2:]))
    return query, key.tensor, value.tensor, mask, split
