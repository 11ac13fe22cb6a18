"""Which attention scores a caller asks for: none, all, or those of chosen heads and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heed._numbers import integer
from heed.layers.axes import AttentionAxes
from heed.layers.shapes import Shape

NAME = "return_attention_scores"


@dataclass(frozen=True)
class Wanted:
    """Heads and rows by their numbers; None for all."""

    heads: tuple[int, ...] | None = None
    rows: tuple[int, ...] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """For `heed.ops.attention_weights`."""
        return {"heads": self.heads, "rows": self.rows}

    def shape(self, whole: Shape, axes: AttentionAxes) -> Shape:
        """The shape of the scores, of which all together have the shape `whole`.

        Raises:
            ValueError: if there is no such head or row.
        """
        shape = list(whole)
        heads_axis = len(whole) - 2 * len(axes.axes) - 1
        for what, chosen, axis in (("heads", self.heads, heads_axis), ("rows", self.rows, -2)):
            if chosen is None:
                continue
            size = whole[axis]
            if size is not None and not all(0 <= number < size for number in chosen):
                raise ValueError(
                    f"`{NAME}` must name {what} from 0 to {size - 1}. Received: {what}={list(chosen)}"
                )
            shape[axis] = len(chosen)
        if self.rows is not None and not axes.trivial:
            raise ValueError(
                f"`{NAME}` can choose rows for inputs of the shape (B, T, D) only. "
                f"Received: rows={list(self.rows)}, for inputs of rank {axes.rank}"
            )
        return tuple(shape)


def wanted(value: Any) -> Wanted | None:
    """What `return_attention_scores` asks for.

    Args:
        value: a boolean, a sequence of heads, or a dictionary with sequences of `heads` or `rows` or both.

    Raises:
        ValueError: for anything else.
    """
    if value is None or isinstance(value, bool):
        return Wanted() if value else None
    parts = value if isinstance(value, Mapping) else {"heads": value}
    chosen = {name: _numbers(part) for name, part in parts.items()}
    if not chosen or set(chosen) - {"heads", "rows"} or None in chosen.values():
        raise ValueError(
            f"`{NAME}` must be a boolean, a sequence of heads, or a dictionary with the numbers of `heads`, `rows` or "
            f"both. Received: {NAME}={value!r}"
        )
    return Wanted(**chosen)


def _numbers(value: Any) -> tuple[int, ...] | None:
    """A sequence of one or more ints, or None if it is something else."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return None
    numbers = [number for x in value if (number := integer(x)) is not None]
    return tuple(numbers) if len(numbers) == len(value) else None
