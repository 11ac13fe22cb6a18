"""Heads of own widths: side by side where they are projected, padded to the widest where they attend.

The op takes heads of one width. Zeros behind the features of a narrower head add nothing to its scores, and what they
give as values is cut off; only the scale, that of the widest head, has to become its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keras import ops

from heed._numbers import check_integer
from heed.layers.shapes import Shape


def check_widths(name: str, value: Any, num_heads: int) -> int | tuple[int, ...]:
    """The width of all heads, or a tuple of those of each where they differ.

    Raises:
        ValueError: for anything but a positive integer or a list or tuple of `num_heads` of them.
    """
    if not isinstance(value, list | tuple):
        return int(check_integer(name, value, least=1))
    if len(value) != num_heads:
        raise ValueError(
            f"`{name}` must be an integer, or have a width for each of the {num_heads} heads. "
            f"Received: {name}={value!r}"
        )
    widths = tuple(check_integer(name, width, least=1) for width in value)
    return widths if len(set(widths)) > 1 else widths[0]


@dataclass(frozen=True)
class HeadWidths:
    """How wide the heads of a projection are.

    Attributes:
        each: N widths.
    """

    each: tuple[int, ...]

    @classmethod
    def of(cls, width: int | Sequence[int], heads: int) -> HeadWidths:
        """From what `check_widths` returns."""
        return cls((width,) * heads if isinstance(width, int) else tuple(width))

    @property
    def equal(self) -> bool:
        """Whether all heads have the same width."""
        return len(set(self.each)) == 1

    @property
    def widest(self) -> int:
        """H or V, the width at which they attend."""
        return max(self.each)

    @property
    def features(self) -> Shape:
        """What a projection makes of a token: (N, H), or heads of own widths side by side, (sum of the widths,)."""
        return (len(self.each), self.widest) if self.equal else (sum(self.each),)

    def apart(self, x: Any) -> Any:
        """From a projection (..., *features): heads (..., N, widest), with zeros behind the narrower ones."""
        if self.equal:
            return x
        ends = [sum(self.each[: n + 1]) for n in range(len(self.each) - 1)]
        kept = [(0, 0)] * (len(x.shape) - 1)
        heads = zip(ops.split(x, ends, axis=-1), self.each, strict=True)
        padded = [ops.pad(head, [*kept, (0, self.widest - width)]) for head, width in heads]
        return ops.stack(padded, axis=-2)

    def joined(self, x: Any) -> Any:
        """Heads (..., N, widest) as they are without padding, side by side: (..., sum of the widths)."""
        if self.equal:
            return ops.reshape(x, (*ops.shape(x)[:-2], sum(self.each)))
        return ops.concatenate([x[..., n, :width] for n, width in enumerate(self.each)], axis=-1)

    def rescaled(self, queries: Any) -> Any:
        """Queries (..., N, widest) for which the scale of the widest head is that of each head's own width."""
        if self.equal:
            return queries
        factors = [[(self.widest / width) ** 0.5] for width in self.each]
        return queries * ops.convert_to_tensor(factors, dtype=queries.dtype)
