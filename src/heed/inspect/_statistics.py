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

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Checks that every array has this shape.

        Raises:
            ValueError: if one has not.
        """
        for part, x in self.to_arrays().items():
            if np.shape(x) != shape:
                raise ValueError(
                    f"`statistics` of {name!r} must have the shape (B, N, T) = {shape}. "
                    f"Received: {part} of shape {np.shape(x)}"
                )


def statistics_of(
    weights: Floats,
    positions: NDArray[np.int64] | None = None,
    tokens: Sequence[int] = (),
    offsets: Sequence[int] = (),
) -> RowStatistics:
    """Statistics of whole rows.

    Args:
        weights: (B, N, t, S), rows that sum to 1 or 0.
        positions: (t,) or (B, 1, t), at which key position each row stands. Default: 0, 1, ...
        tokens: which keys to report.
        offsets: which offsets to report.
    """
    t, S = weights.shape[2:]
    if positions is None:
        positions = np.arange(t)
    # 0 ln 0 is 0: the smallest number keeps the logarithm finite there, and is lost in any other weight.
    tiny = np.finfo(weights.dtype).tiny
    entropy = -np.einsum("bnts,bnts->bnt", weights, np.log(np.maximum(weights, tiny)))
    far = np.abs(positions[..., None] - np.arange(S)).astype(weights.dtype)
    if far.ndim == 2:
        distance = np.einsum("bnts,ts->bnt", weights, far)
    else:
        distance = np.einsum(
            "bnts,bts->bnt", weights, np.broadcast_to(far, (len(weights), 1, t, S))[:, 0]
        )
    entropy += 0.0  # no -0
    return RowStatistics(
        entropy,
        distance,
        {token: weights[..., token] for token in tokens},
        {offset: _diagonal(weights, positions + offset) for offset in offsets},
    )


def _diagonal(weights: Floats, keys: NDArray[np.int64]) -> Floats:
    """The weight of each row on its own key, (t,) or (B, 1, t); 0 where it does not exist."""
    B, N, t, S = weights.shape
    if S == 0:
        return np.zeros((B, N, t), weights.dtype)
    keys = np.broadcast_to(keys, (B, N, t))
    inside = (keys >= 0) & (keys < S)
    picked = np.take_along_axis(weights, np.where(inside, keys, 0)[..., None], axis=3)[..., 0]
    return np.where(inside, picked, 0)
