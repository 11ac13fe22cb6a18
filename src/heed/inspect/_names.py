"""Names of attention layers: the path through the enclosing layers, as "block_1/attention"."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from heed.number_checks import integer


def make_full_name(path: Sequence[str], others: Collection[str]) -> str:
    """Join the names on the path to a layer, and append _1, _2, ... if the layer was called before."""
    full = name = "/".join(path)
    number = 0
    while full in others:
        number += 1
        full = f"{name}_{number}"
    return full


def matches(given: str, full: str) -> bool:
    """Return whether a name that a user gave is the full name or its end."""
    return full == given or full.endswith(f"/{given}")


def selects(given: str, full: str) -> bool:
    """Return whether a name that a user gave is the full name, its end, or layers around it.

    >>> selects("layer_1", "decoder/layer_1/attention"), selects("attention", "decoder/layer_1/attention")
    (True, True)
    >>> selects("layer_1", "decoder/layer_12/attention")
    False
    """
    return f"/{given}/" in f"/{full}/"


def shorten_names(fulls: Sequence[str]) -> list[str]:
    """Remove the leading layers that all full names share.

    >>> shorten_names(["model/encoder/block_0/attention", "model/encoder/block_1/attention"])
    ['block_0/attention', 'block_1/attention']
    >>> shorten_names(["model/attention"])
    ['attention']
    """
    parts = [full.split("/") for full in fulls]
    shared = 0
    while all(len(x) > shared + 1 and x[shared] == parts[0][shared] for x in parts):
        shared += 1
    return ["/".join(x[shared:]) for x in parts]


def check_names(
    option: str, given: Iterable[str], fulls: Sequence[str], kind: str = "attention layers"
) -> None:
    """Check that each name selects a layer; else list the layers in a ValueError."""
    for name in given:
        if not any(selects(name, full) for full in fulls):
            raise ValueError(
                f"`{option}` must name {kind} of the model: "
                f"{', '.join(map(repr, shorten_names(fulls)))}. Received: {name!r}"
            )


def to_integer(option: str, value: Any) -> int:
    """Return the value of an option as an int, or raise a TypeError."""
    number = integer(value)
    if number is None:
        raise TypeError(f"`{option}` must be an integer. Received: {option}={value!r}")
    return number


def to_integers(option: str, given: Any) -> tuple[int, ...] | None:
    """Return the values of an option as ints, or raise a TypeError; None stays None."""
    if given is None:
        return None
    items = np.asarray(given, object)
    if items.ndim != 1 or any(integer(i) is None for i in items):
        raise TypeError(f"`{option}` must be a list of integers. Received: {option}={given!r}")
    return tuple(map(int, items))


def check_index(option: str, value: Any, limit: int, of: str = "") -> int:
    """Return an index below `limit`; `of` says in the message what it is an index of."""
    number = to_integer(option, value)
    if not 0 <= number < limit:
        raise ValueError(f"`{option}` must be in [0, {limit}){of}. Received: {option}={value}")
    return number


def check_indices(
    option: str, given: Any, limit: int | None, of: str = ""
) -> tuple[int, ...] | None:
    """Return indices below `limit`, at least one; None stays None. Without a limit there may be none."""
    chosen = to_integers(option, given)
    if chosen is None:
        return None
    if limit is not None and not chosen:
        raise ValueError(f"`{option}` must not be empty{of}. Received: {option}={given!r}")
    if min(chosen, default=0) < 0 or (limit is not None and max(chosen) >= limit):
        upper = "S" if limit is None else limit
        raise ValueError(f"`{option}` must be in [0, {upper}){of}. Received: {option}={given!r}")
    return chosen
