"""A cache whose parts stay apart until one tensor is needed.

KerasHub keeps the keys and values of all layers in one tensor (B, layers, 2, S, N, H). A step slices out those of each
layer, writes one position, and stacks all of them again, which copies the cache several times for every token.
`CacheParts` takes its place: indexing it and stacking its parts give parts again, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

from heed.acceleration.hub import _notes
from heed.acceleration.hub.repeated import RepeatedRows
from heed.acceleration.hub.stand_in import StandIn

# Marks tensors that are parts of a cache, so that stacking them makes one.
_NOTE = "_heed_part_of_cache"


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
