"""Statistics of rows of attention weights, from the rows themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


@dataclasses.dataclass(frozen=True)
class RowStatistics:
    """What the weights of each query amount to; every array is (B, N, T).

    Attributes:
        entropy: -sum_j w_ij ln w_ij, in nats.
        distance: sum_j w_ij |p_i - j|, where query i stands at the key position p_i.
        tokens: by key j: w_ij.
        offsets: by offset d: w_ij for j = p_i + d, 0 where there is no such key.
    """

    entropy: Floats
    distance: Floats
    tokens: Mapping[int, Floats] = dataclasses.field(default_factory=dict)
    offsets: Mapping[int, Floats] = dataclasses.field(default_factory=dict)

    def to_arrays(self) -> dict[str, Floats]:
        """By name, for a file."""
        arrays = {"entropy": self.entropy, "distance": self.distance}
        for kind in ("tokens", "offsets"):
            arrays |= {f"{kind}/{which}": x for which, x in getattr(self, kind).items()}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Floats]) -> RowStatistics:
        """From what `to_arrays` gave."""
        parts: dict[str, dict[int, Floats]] = {"tokens": {}, "offsets": {}}
        for name, x in arrays.items():
            kind, _, which = name.partition("/")
            if which:
                parts[kind][int(which)] = x
        return cls(arrays["entropy"], arrays["distance"], **parts)

    def joined(self, other: RowStatistics) -> RowStatistics:
        """With the tokens and offsets that only the other one has."""
        return dataclasses.replace(
            self,
            tokens={**other.tokens, **self.tokens},
            offsets={**other.offsets, **self.offsets},
        )


def joined_rows(parts: Sequence[RowStatistics]) -> RowStatistics:
    """The statistics of blocks of queries, one after the other."""
    arrays = [part.to_arrays() for part in parts]
    joined = {name: np.concatenate([x[name] for x in arrays], axis=2) for name in arrays[0]}
    return RowStatistics.from_arrays(joined)


def statistics_of(
    weights: Floats,
    places: NDArray[np.int64],
    tokens: Sequence[int] = (),
    offsets: Sequence[int] = (),
) -> RowStatistics:
    """Statistics of whole rows.

    Args:
        weights: (B, N, t, S), rows that sum to 1 or 0.
        places: at which key position each row stands, (1 or B, 1, t).
        tokens: which keys to report.
        offsets: which offsets to report.
    """
    t, S = weights.shape[2:]
    # 0 ln 0 is 0: the smallest number keeps the logarithm finite there, and is lost in any other weight.
    logarithms = np.maximum(weights, np.finfo(weights.dtype).tiny)
    np.log(logarithms, out=logarithms)
    entropy = -np.einsum("bnts,bnts->bnt", weights, logarithms)
    far = np.abs(places[:, 0, :, None] - np.arange(S)).astype(weights.dtype)  # (1 or B, t, S)
    return RowStatistics(
        np.maximum(entropy, 0),  # rounding, and -0
        np.einsum("bnts,bts->bnt", weights, np.broadcast_to(far, (len(weights), t, S))),
        {token: weights[..., token].copy() for token in tokens},
        {offset: _at(weights, places + offset) for offset in offsets},
    )


def _at(weights: Floats, keys: NDArray[np.int64]) -> Floats:
    """The weight of each row on its own key, (1 or B, 1, t); 0 where that does not exist."""
    B, N, t, S = weights.shape
    if S == 0:
        return np.zeros((B, N, t), weights.dtype)
    keys = np.broadcast_to(keys, (B, N, t))
    inside = (keys >= 0) & (keys < S)
    picked = np.take_along_axis(weights, np.where(inside, keys, 0)[..., None], axis=3)[..., 0]
    return np.where(inside, picked, 0)
