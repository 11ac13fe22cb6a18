"""Keys and values of sources that several rows of queries share: the beams of a search.

KerasHub repeats them for every beam, in every step. `RepeatedRows` takes their place: the beams of a source become
several queries of one row, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import ops

from heed.acceleration.hub.stand_in import StandIn


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
