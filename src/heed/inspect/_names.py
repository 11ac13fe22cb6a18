"""Names of attention layers: that of the layer itself, after those of the layers around it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
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


class Choice:
    """The layers that a user has chosen, or all.

    Raises:
        TypeError: if they are not given as a list of names.
        ValueError: if the list is empty.
    """

    def __init__(self, layers: Sequence[str] | None) -> None:
        if layers is not None:
            if isinstance(layers, str) or any(not isinstance(name, str) for name in layers):
                raise TypeError(f"`layers` must be a list of names. Received: layers={layers!r}")
            if not layers:
                raise ValueError(f"`layers` must not be empty. Received: layers={layers!r}")
        self._layers = layers

    def __contains__(self, full: str) -> bool:
        return self._layers is None or any(answers(given, full) for given in self._layers)

    def check(self, fulls: Sequence[str]) -> None:
        """Checks, once the full names are known, that each chosen layer is there.

        Raises:
            ValueError: if one is not; lists those that are.
        """
        check("layers", self._layers or (), fulls)


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


def check_example(weights: Mapping[str, Sized], name: str, example: int) -> int:
    """The number of an entry of the batch, checked.

    Args:
        weights: of a `Capture`.
        name: of a layer.
        example: the number.

    Raises:
        TypeError: if it is not an integer.
        ValueError: if there is no such entry.
    """
    count, number = len(weights[name]), whole("example", example)
    if not 0 <= number < count:
        raise ValueError(
            f"`example` must be in [0, {count}), the batch of {name!r}. Received: example={example}"
        )
    return number


def whole(option: str, value: Any) -> int:
    """The value of an option as an int.

    Raises:
        TypeError: if it is no integer.
    """
    number = integer(value)
    if number is None:
        raise TypeError(f"`{option}` must be an integer. Received: {option}={value!r}")
    return number
