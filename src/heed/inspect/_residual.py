"""`Residual`: the residual stream of one run, and what each part of each block adds to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from keras import ops
from numpy.typing import NDArray

from heed.inspect import _names
from heed.inspect._observed import widen
from heed.inspect._row_statistics import Floats
from heed.inspect._watch import Place

# Chooses the positions of a place (full name, T); None for all, and False to leave the place out.
Choose = Callable[[str, int], Any]


class Residual(Mapping[str, "Floats"]):
    """The tensors of a run by the name of their place, in the order in which the model computed them.

    The places of a block "layer_1", each (B, T, D):

    - "layer_1/input": the residual stream that it gets;
    - "layer_1/attention_output", "layer_1/cross_attention_output", "layer_1/feed_forward_output": what a part adds;
    - "layer_1/output": the stream that it returns.

    And of an attention "layer_1/attention": "layer_1/attention/heads", (B, T, N, V), the output of each head before the
    projection.

    Args:
        arrays: the tensors by name; T counts the positions that were recorded.
        positions: these positions, by name.

    Attributes:
        positions: see above.
    """

    def __init__(self, arrays: Mapping[str, Floats], positions: Mapping[str, tuple[int, ...]]):
        self._arrays = dict(arrays)
        for x in self._arrays.values():
            x.flags.writeable = False
        self.positions: Mapping[str, tuple[int, ...]] = MappingProxyType(dict(positions))

    def __getitem__(self, name: str) -> Floats:
        return self._arrays[self.find(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def find(self, name: str) -> str:
        """Return the whole name of a place by its end.

        Raises:
            KeyError: if there is no such place, or more than one; the message lists all.
        """
        found = [x for x in self._arrays if _names.matches(name, x)]
        if name in self._arrays:
            return name
        if len(found) != 1:
            raise KeyError(
                f"`name` must name one of {', '.join(map(repr, self._arrays)) or 'no places'}. Received: {name!r}"
            )
        return found[0]

    def __repr__(self) -> str:
        lines = [f"  {name}: {' x '.join(map(str, x.shape))}" for name, x in self._arrays.items()]
        count = f"{len(lines)} place{'' if len(lines) == 1 else 's'}"
        return "\n".join([f"<Residual of {count}", *lines]) + ">"

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, for a file."""
        entries: dict[str, NDArray[Any]] = {"names": np.array(list(self))}
        for number, (name, x) in enumerate(self.items()):
            entries[f"{number}/values"] = x
            entries[f"{number}/positions"] = np.array(self.positions[name], np.int64)
        return entries

    @classmethod
    def from_arrays(cls, entries: Mapping[str, NDArray[Any]]) -> Residual:
        """Return the inverse of `to_arrays`."""
        names = [str(name) for name in entries["names"]]
        return cls(
            {name: entries[f"{i}/values"] for i, name in enumerate(names)},
            {name: tuple(entries[f"{i}/positions"].tolist()) for i, name in enumerate(names)},
        )


class Recorder:
    """A tap that records the stream and the heads."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self.names: list[str] = []  # of all places
        self.arrays: dict[str, Floats] = {}
        self.positions: dict[str, tuple[int, ...]] = {}

    def __call__(self, place: Place, x: Any) -> None:
        if place.part == "weights":
            return
        if place.name not in self.names:
            self.names.append(place.name)
        T = int(x.shape[1])
        chosen = self._choose(place.name, T)
        if chosen is False:
            return
        before = self.arrays.get(place.name)
        if before is not None:  # a further step of a recurrent decoder
            self.positions[place.name] += (before.shape[1],)
            self.arrays[place.name] = np.concatenate([before, to_floats(x)], axis=1)
            return
        if chosen is not None:
            x = ops.take(x, list(chosen), axis=1)
        self.positions[place.name] = tuple(range(T)) if chosen is None else chosen
        self.arrays[place.name] = to_floats(x)

    def finish(self) -> Residual:
        """Return what has been recorded, by short names."""
        short = dict(zip(self.names, _names.shorten_names(self.names), strict=True))
        return Residual(
            {short[name]: x for name, x in self.arrays.items()},
            {short[name]: x for name, x in self.positions.items()},
        )


def to_floats(x: Any) -> Floats:
    """Return a tensor as an array of its own, float32 or float64."""
    return np.array(ops.convert_to_numpy(widen(x)))
