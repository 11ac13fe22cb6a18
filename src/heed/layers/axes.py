"""Attention over chosen axes: views of rank-r tensors as the (B, T, N, H) that the ops take.

A layer takes (B, d1, ..., dk, D). The attention axes among d1..dk are flattened into one length (T for the query, S for
key and value), the free ones into the batch. For (B, T, D), the usual case, these functions return their argument.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from heed.layers.shapes import Shape, agree, broadcasts, padding_remedy


class AttentionAxes:
    """The axes attended over, for inputs of one rank: batch and features included, at least 3.

    Axes are counted in the input, negative ones from its end; None: all but the first and the last.
    """

    def __init__(self, rank: int, axes: Sequence[int] | None) -> None:
        if rank < 3:
            raise ValueError(
                "`query` must have at least three dimensions, (B, T, D). "
                f"Received: an input of rank {rank}"
            )
        resolved = tuple(range(1, rank - 1)) if axes is None else tuple(axes)
        resolved = tuple(axis + rank if axis < 0 else axis for axis in resolved)
        if (
            not resolved
            or len(set(resolved)) != len(resolved)
            or any(not 1 <= axis <= rank - 2 for axis in resolved)
        ):
            raise ValueError(
                "`attention_axes` must name, once each, axes between the batch and the feature "
                f"axis. Received: attention_axes={axes}, for inputs of rank {rank}"
            )
        self.rank = rank
        self.axes = resolved
        self.free = tuple(axis for axis in range(1, rank - 1) if axis not in resolved)
        self.trivial = rank == 3
        self._order = (0, *self.free, *self.axes)

    def check(self, query: Shape, value: Shape) -> None:
        """Check that query and value have this rank and the same free dimensions."""
        ranks = len(query) == len(value) == self.rank
        if not ranks or any(not agree(query[a : a + 1], value[a : a + 1]) for a in self.free):
            raise ValueError(
                "`query` and `value` must have the same rank, and the same size along each axis "
                f"that is not attended over. Received: query.shape={query}, value.shape={value}, "
                f"attention_axes={self.axes}"
            )

    def flatten(self, x: Any) -> Any:
        """Map (B, d1, ..., dk, N, H) to (B', T, N, H)."""
        if self.trivial:
            return x
        shape = ops.shape(x)
        batch, length = self._sizes(shape)
        x = ops.transpose(x, (*self._order, self.rank - 1, self.rank))
        return ops.reshape(x, (math.prod(batch), math.prod(length), shape[-2], shape[-1]))

    def flat_shape(self, shape: Shape) -> Shape:
        """Return the shape of what `flatten` makes of an input of this shape; None for unknown sizes."""
        if self.trivial:
            return shape
        sizes = (None if None in part else math.prod(part) for part in self._sizes(shape))
        return (*sizes, *shape[-2:])

    def unflatten(self, x: Any, like: Any) -> Any:
        """Map (B', T, N, V) back to (B, d1, ..., dk, N, V), sized as `like` (B, d1, ..., dk, N, H)."""
        if self.trivial:
            return x
        batch, length = self._sizes(ops.shape(like))
        x = ops.reshape(x, (*batch, *length, *ops.shape(x)[-2:]))
        order = (*self._order, self.rank - 1, self.rank)
        return ops.transpose(x, tuple(order.index(axis) for axis in range(len(order))))

    def unflatten_scores(self, scores: Any, query: Any, key: Any) -> Any:
        """Map (B', N, T, S) to (B, free..., N, T axes..., S axes...), sized as the projected inputs."""
        if self.trivial:
            return scores
        batch, rows = self._sizes(ops.shape(query))
        _, columns = self._sizes(ops.shape(key))
        return ops.reshape(scores, (*batch, ops.shape(scores)[1], *rows, *columns))

    def scores_shape(self, query: Shape, key: Shape, num_heads: int) -> Shape:
        """Return the shape of the scores for inputs of these shapes."""
        batch, rows = self._sizes(query)
        _, columns = self._sizes(key)
        return (*batch, num_heads, *rows, *columns)

    def complete_scores_like(self, shape: Shape, target: Shape, name: str) -> Shape:
        """Return the shape of a mask or bias over the scores, with ones for the dimensions that Keras lets it omit.

        (T, S) and (B, T, S) hold for every head: the ones are inserted before the attended axes. `target` is the shape
        of the scores, `name` the argument's.
        """
        split = len(shape) - 2 * len(self.axes)
        missing = len(target) - len(shape)
        full = (*shape[: max(split, 0)], *(1,) * missing, *shape[max(split, 0) :])
        if split < 0 or missing < 0 or not broadcasts(full, target):
            raise ValueError(
                f"`{name}` must be broadcastable to the scores, of shape {target}, or to them "
                f"without the dimension of the heads{padding_remedy(shape, target)}. Received: {name}.shape={shape}"
            )
        return full

    def flatten_scores_like(self, x: Any, query: Any, key: Any, heads: int, name: str) -> Any:
        """Return a mask or bias over the scores as an array that broadcasts to (B', N, T, S); None stays None.

        `query` and `key` may be projected or not: only their leading dimensions (B, d1, ..., dk) count.
        """
        if x is None:
            return None
        shape = tuple(x.shape)
        target = self.scores_shape(tuple(query.shape), tuple(key.shape), heads)
        full = self.complete_scores_like(shape, target, name)
        if missing := len(full) - len(shape):
            split = len(shape) - 2 * len(self.axes)
            x = ops.expand_dims(x, tuple(range(split, split + missing)))
        if self.trivial:
            return x
        return self._merge(x, full, self.scores_shape(ops.shape(query), ops.shape(key), heads))

    def _merge(self, x: Any, shape: Shape, target: Shape) -> Any:
        """Merge the axes of each group of a scores-like array: batch and free, heads, rows, columns."""
        heads = 1 + len(self.free)
        bounds = (0, heads, heads + 1, heads + 1 + len(self.axes), len(shape))
        broadcast: list[Any] = []
        merged: list[Any] = []
        for first, last in itertools.pairwise(bounds):
            # A group of ones stays one; any other must have its full size before it can merge.
            sizes = shape[first:last]
            if any(n != 1 for n in sizes):
                sizes = target[first:last]
            broadcast.extend(sizes)
            merged.append(math.prod(sizes))
        return ops.reshape(ops.broadcast_to(x, broadcast), merged)

    def check_positions(self, shape: Shape, tensor: Shape, name: str) -> bool:
        """Tell whether a mask has one value per position; with one attention axis it may be (B, T), for all free axes.

        A mask of another shape is an error. `tensor` is (B, d1, ..., dk, ...), the shape of what the mask belongs to.
        """
        full = tensor[: self.rank - 1]
        # One row holds for the whole batch, and a batch of 1 may have several rows: they broadcast.
        if 1 in (shape[:1] + full[:1]):
            shape = (*full[:1], *shape[1:])
        if agree(shape, full):
            return True
        if len(self.axes) != 1 or not agree(shape, (full[0], full[self.axes[0]])):
            raise ValueError(
                f"`{name}` must hold one value per position, so it must have the shape {full}. "
                f"Received: {name}.shape={shape}"
            )
        return False

    def align_positions(self, mask: Any, x: Any, name: str) -> Any:
        """Return a mask of positions as an array that broadcasts to (B, d1, ..., dk) of `x`; None stays None."""
        if mask is None or self.check_positions(tuple(mask.shape), tuple(x.shape), name):
            return mask
        spread = [1] * (self.rank - 1)
        spread[0], spread[self.axes[0]] = ops.shape(mask)
        return ops.reshape(mask, spread)

    def flatten_positions(self, mask: Any, x: Any) -> Any:
        """Return a mask from `align_positions` as (B', T); None stays None."""
        if mask is None or self.trivial:
            return mask
        sizes = ops.shape(x)[: self.rank - 1]
        batch, length = self._sizes(sizes)
        mask = ops.transpose(ops.broadcast_to(mask, sizes), self._order)
        return ops.reshape(mask, (math.prod(batch), math.prod(length)))

    def _sizes(self, shape: Shape) -> tuple[Shape, Shape]:
        """Return the sizes of batch and free axes, and of the attended axes."""
        return (
            (shape[0], *(shape[axis] for axis in self.free)),
            tuple(shape[axis] for axis in self.axes),
        )
