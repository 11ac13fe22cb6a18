"""Names of attention layers: those of the layer and of the layers around it, as many as tell it from the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def full_name(path: Sequence[str], others: Collection[str]) -> str:
    """The names on the way to a layer, joined; with _1, _2, ... where the layer was called before."""
    full = name = "/".join(path)
    number = 0
    while full in others:
        number += 1
        full = f"{name}_{number}"
    return full


def answers(given: str, full: str) -> bool:
    """Whether what a user calls a layer is its full name, or the end of it."""
    return full == given or full.endswith(f"/{given}")


def short_names(fulls: Sequence[str]) -> list[str]:
    """For each full name the shortest end that no other one has.

    >>> short_names(["encoder/block_0/attention", "encoder/block_1/attention", "decoder/cross"])
    ['block_0/attention', 'block_1/attention', 'cross']
    """
    return [_shortest(full, fulls) for full in fulls]


def _shortest(full: str, fulls: Sequence[str]) -> str:
    parts = full.split("/")
    for count in range(1, len(parts)):
        end = "/".join(parts[-count:])
        if sum(answers(end, other) for other in fulls) == 1:
            return end
    return full


def check(option: str, given: Iterable[str], fulls: Sequence[str]) -> None:
    """Checks that each name is that of a layer.

    Raises:
        ValueError: if one is not; lists the layers that there are.
    """
    for name in given:
        if not any(answers(name, full) for full in fulls):
            raise ValueError(
                f"`{option}` must name attention layers of the model: "
                f"{', '.join(map(repr, short_names(fulls)))}. Received: {name!r}"
            )
