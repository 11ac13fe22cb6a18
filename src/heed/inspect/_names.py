"""Names of attention layers: that of the layer itself, after those of the layers around it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from heed._numbers import integer


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
    """The full names without the layers around all of them.

    >>> short_names(["model/encoder/block_0/attention", "model/encoder/block_1/attention"])
    ['block_0/attention', 'block_1/attention']
    >>> short_names(["model/attention"])
    ['attention']
    """
    parts = [full.split("/") for full in fulls]
    shared = 0
    while all(len(x) > shared + 1 and x[shared] == parts[0][shared] for x in parts):
        shared += 1
    return ["/".join(x[shared:]) for x in parts]


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


def whole(option: str, value: Any) -> int:
    """The value of an option as an int.

    Raises:
        TypeError: if it is no integer.
    """
    number = integer(value)
    if number is None:
        raise TypeError(f"`{option}` must be an integer. Received: {option}={value!r}")
    return number
