"""The tensor layouts of attention: where query, key and value have their axes."""

from __future__ import annotations

from typing import NamedTuple


class Layout(NamedTuple):
    """The axes of query, key and value."""

    axes: tuple[str, str, str]  # the letters of query, key and value
    heads_axis: int | None  # None without heads
    length_axis: int  # T of the query, S of key and value


# "BTU" is additive attention, which has one head and no axis for it.
LAYOUTS = {
    "BTNH": Layout(("(B, T, N, H)", "(B, S, K, H)", "(B, S, K, V)"), 2, 1),
    "BNTH": Layout(("(B, N, T, H)", "(B, K, S, H)", "(B, K, S, V)"), 1, 2),
    "BTU": Layout(("(B, T, U)", "(B, S, U)", "(B, S, V)"), None, 1),
}
