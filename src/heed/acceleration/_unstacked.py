"""A cache whose parts stay where they are until somebody needs it as one tensor.

KerasHub keeps the keys and values of all layers in one tensor (B, layers, 2, S, N, H). Each step takes each layer's out
of it, writes one position, and stacks all of them again: the cache is copied several times for every token. `Unstacked`
stands in its place. What it is indexed with and what is stacked of its parts are parts again, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

# Marks tensors that are parts of a cache, so that stacking them is known to make one.
_NOTE = "_heed_part_of_cache"


class Unstacked:
    """What `keras.ops.stack(parts, axis)` would give.

    Whatever wants a tensor gets that: TensorFlow asks `__tf_tensor__`.

    Args:
        parts: of one shape and dtype: tensors, or more of these.
        axis: along which they would be stacked.
    """

    def __init__(self, parts: Sequence[Any], axis: int) -> None:
        self.parts, self.axis = tuple(parts), axis

    @property
    def shape(self) -> tuple[int | None, ...]:
        """That of the one tensor."""
        shape = tuple(self.parts[0].shape)
        return (*shape[: self.axis], len(self.parts), *shape[self.axis :])

    @property
    def ndim(self) -> int:
        """How many axes that has."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """That of the parts."""
        return self.parts[0].dtype

    def stacked(self) -> Any:
        """The one tensor."""
        parts = [ops.convert_to_tensor(part) for part in self.parts]
        # Through `concatenate`: stacking parts is what makes one of these.
        return ops.concatenate([ops.expand_dims(part, self.axis) for part in parts], self.axis)

    def __getitem__(self, index: Any) -> Any:
        """A part where `index` takes one part whole, else what it takes of the one tensor."""
        given = index if isinstance(index, tuple) else (index,)
        before, rest = given[: self.axis], given[self.axis :]
        whole = all(x is Ellipsis or _is_all(x) for x in rest[1:])
        if all(_is_all(x) for x in before) and rest and type(rest[0]) is int and whole:
            return part_of_cache(self.parts[rest[0]])
        return self.stacked()[index]

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        """The one tensor, for TensorFlow."""
        stacked = self.stacked()
        return stacked if dtype is None else ops.cast(stacked, dtype.name)


def _is_all(index: Any) -> bool:
    return isinstance(index, slice) and index == slice(None)


def part_of_cache(x: Any) -> Any:
    """`x`, known from now on as a part of a cache."""
    if not isinstance(x, Unstacked):
        setattr(x, _NOTE, True)
    return x


def is_part_of_cache(x: Any) -> bool:
    """Whether it is such a part."""
    return isinstance(x, Unstacked) or getattr(x, _NOTE, False)
