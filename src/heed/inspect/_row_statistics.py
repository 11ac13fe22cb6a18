"""Statistics of rows of attention weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


@dataclasses.dataclass(frozen=True)
class RowStatistics:
    """Statistics of the weights of each query; every array is (B, N, T).

    Attributes:
        entropy: -sum_j w_ij ln w_ij, in nats.
        distance: sum_j w_ij |p_i - j|, where p_i is the key position of query i.
        tokens: w_ij by key j.
        offsets: w_ij by offset d, with j = p_i + d; 0 where there is no such key.
    """

    entropy: Floats
    distance: Floats
    tokens: Mapping[int, Floats] = dataclasses.field(default_factory=dict)
    offsets: Mapping[int, Floats] = dataclasses.field(default_factory=dict)

    def to_arrays(self) -> dict[str, Floats]:
        """Return the arrays by name, for a file."""
        arrays = {"entropy": self.entropy, "distance": self.distance}
        for kind in ("tokens", "offsets"):
            arrays |= {f"{kind}/{which}": x for which, x in getattr(self, kind).items()}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Floats]) -> RowStatistics:
        """Return the inverse of `to_arrays`."""
        parts: dict[str, dict[int, Floats]] = {"tokens": {}, "offsets": {}}
        for name, x in arrays.items():
            kind, _, which = name.partition("/")
            if which:
                parts[kind][int(which)] = x
        return cls(arrays["entropy"], arrays["distance"], **parts)

    def merge(self, other: RowStatistics) -> RowStatistics:
        """Add the tokens and offsets that only the other has."""
        return dataclasses.replace(
            self,
            tokens={**other.tokens, **self.tokens},
            offsets={**other.offsets, **self.offsets},
        )


def each_head(rows: Mapping[str, Floats]) -> Iterator[tuple[str, int, float]]:
    """Yield the layer, the number and the value of each head of (N,) values by layer."""
    for name, row in rows.items():
        for head, x in enumerate(row):
            yield name, head, float(x)


def join_rows(parts: Sequence[RowStatistics]) -> RowStatistics:
    """Concatenate the statistics of blocks of queries."""
    arrays = [part.to_arrays() for part in parts]
    arrays_of_all = {name: np.concatenate([x[name] for x in arrays], axis=2) for name in arrays[0]}
    return RowStatistics.from_arrays(arrays_of_all)


def compute_statistics(
    weights: Floats,
    places: NDArray[np.int64],
    tokens: Sequence[int] = (),
    offsets: Sequence[int] = (),
) -> RowStatistics:
    """Compute the statistics of whole rows.

    Args:
        weights: (B, N, t, S), rows that sum to 1 or 0.
        places: the key position of each row, (1 or B, 1, t).
        tokens: which keys to report.
        offsets: which offsets to report.
    """
    t, S = weights.shape[2:]
    # 0 ln 0 = 0: the smallest number keeps the logarithm finite there and changes no other weight.
    logarithms = np.maximum(weights, np.finfo(weights.dtype).tiny)
    np.log(logarithms, out=logarithms)
    entropy = -np.einsum("bnts,bnts->bnt", weights, logarithms)
    far = np.abs(places[:, 0, :, None] - np.arange(S)).astype(weights.dtype)  # (1 or B, t, S)
    return RowStatistics(
        np.maximum(entropy, 0),  # removes -0 and negative rounding errors
        np.einsum("bnts,bts->bnt", weights, np.broadcast_to(far, (len(weights), t, S))),
        {token: weights[..., token].copy() for token in tokens},
        {offset: _gather(weights, places + offset) for offset in offsets},
    )


def _gather(weights: Floats, keys: NDArray[np.int64]) -> Floats:
    """Return the weight that each row gives its key, (1 or B, 1, t); 0 where the key does not exist."""
    B, N, t, S = weights.shape
    if S == 0:
        return np.zeros((B, N, t), weights.dtype)
    keys = np.broadcast_to(keys, (B, N, t))
    inside = (keys >= 0) & (keys < S)
    picked = np.take_along_axis(weights, np.where(inside, keys, 0)[..., None], axis=3)[..., 0]
    return np.where(inside, picked, 0)
