"""Heads of different widths: concatenated in projections, padded to the widest for the attention.

The op takes heads of one width. Zeros after the features of a narrower head add nothing to its scores, and the padding
of values is cut off; only the scale, that of the widest head, is corrected for each head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keras import ops

from heed.layers.shapes import Shape
from heed.number_checks import check_integer


def check_widths(name: str, value: Any, num_heads: int) -> int | tuple[int, ...]:
    """Return the width of all heads, or a tuple of N widths if they differ."""
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
    """The widths of a projection's N heads."""

    each: tuple[int, ...]

    @classmethod
    def of(cls, width: int | Sequence[int], heads: int) -> HeadWidths:
        """Return the widths that `check_widths` returned."""
        return cls((width,) * heads if isinstance(width, int) else tuple(width))

    @property
    def equal(self) -> bool:
        """Whether all heads have the same width."""
        return len(set(self.each)) == 1

    @property
    def widest(self) -> int:
        """H or V, the width of heads in the attention."""
        return max(self.each)

    @property
    def features(self) -> Shape:
        """The shape of a projected token: (N, H), or (sum of the widths,) if they differ."""
        return (len(self.each), self.widest) if self.equal else (sum(self.each),)

    def split(self, x: Any) -> Any:
        """Return heads (..., N, widest) of a projection (..., *features), with zeros after the narrower ones."""
        if self.equal:
            return x
        ends = [sum(self.each[: n + 1]) for n in range(len(self.each) - 1)]
        kept = [(0, 0)] * (len(x.shape) - 1)
        heads = zip(ops.split(x, ends, axis=-1), self.each, strict=True)
        padded = [ops.pad(head, [*kept, (0, self.widest - width)]) for head, width in heads]
        return ops.stack(padded, axis=-2)

    def join(self, x: Any) -> Any:
        """Return heads (..., N, widest) concatenated without their padding: (..., sum of the widths)."""
        if self.equal:
            return ops.reshape(x, (*ops.shape(x)[:-2], sum(self.each)))
        return ops.concatenate([x[..., n, :width] for n, width in enumerate(self.each)], axis=-1)

    def rescale(self, queries: Any) -> Any:
        """Scale queries (..., N, widest), so the op's scale, for the widest head, becomes right for each head."""
        if self.equal:
            return queries
        factors = [[(self.widest / width) ** 0.5] for width in self.each]
        return queries * ops.convert_to_tensor(factors, dtype=queries.dtype)
