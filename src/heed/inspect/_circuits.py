"""Scores of heads that make up circuits: previous-token, duplicate-token and induction heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.config import one_of
from heed.inspect._capture import Capture
from heed.inspect._row_statistics import Floats, each_head
from heed.number_checks import check_integer

SCORES = ("previous", "duplicate", "induction")


class HeadScore(NamedTuple):
    """The score of one head."""

    layer: str
    head: int
    score: float


@dataclass(frozen=True)
class CircuitScores:
    """The result of `circuit_scores`.

    Attributes:
        scores: "previous", "duplicate" and "induction", each (N,) in [0, 1] by layer name; of a comparison their
            differences.
        compared: whether these are differences of two models.
    """

    scores: Mapping[str, Mapping[str, Floats]]
    compared: bool = False

    def ranking(self, kind: str) -> list[HeadScore]:
        """Return all heads, those with the highest score first; of a comparison those that differ most.

        Raises:
            ValueError: if there is no such score.
        """
        found = [HeadScore(*x) for x in each_head(self.scores[one_of(SCORES).check("kind", kind)])]
        return sorted(found, key=lambda x: -(abs(x.score) if self.compared else x.score))

    def __sub__(self, other: CircuitScores) -> CircuitScores:
        """Compare with the scores of another model or checkpoint: positive where this one's are higher.

        Raises:
            ValueError: if layers or heads differ.
        """
        if not isinstance(other, CircuitScores):
            return NotImplemented
        shapes = [
            {name: x.shape for name, x in one.scores["previous"].items()} for one in (self, other)
        ]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"`other` must have the same layers and heads. Received: {shapes[1]} for {shapes[0]}"
            )
        return CircuitScores(
            {
                kind: {name: x - other.scores[kind][name] for name, x in rows.items()}
                for kind, rows in self.scores.items()
            },
            compared=True,
        )

    def __repr__(self) -> str:
        width = max([5, *(len(name) for name in self.scores["previous"])])
        sign = "+" if self.compared else ""
        lines = [f"{'layer':<{width}}  head  " + "  ".join(f"{kind:>9}" for kind in SCORES)]
        for name, row in self.scores["previous"].items():
            for head in range(len(row)):
                numbers = "  ".join(
                    f"{float(self.scores[kind][name][head]):>{sign}9.3f}" for kind in SCORES
                )
                lines.append(f"{name:<{width}}  {head:>4}  {numbers}")
        return "\n".join(lines)


def circuit_scores(capture: Capture, tokens: Any) -> CircuitScores:
    """Score each head as a previous-token, a duplicate-token and an induction head.

    Each score is the mean over queries i of sum_j w_ij over the keys j that such a head attends to:

    - previous: j = i - 1, for i >= 1;
    - duplicate: j < i with the same token as i, for the i that have any;
    - induction: j <= i, one behind a key with the same token as i, for the i that have any. The token of j is what
      followed it then.

    Args:
        capture: of a decoder, with whole weights (`size=None`) of all rows; other layers than self-attention of T
            tokens are left out. Of an encoder-decoder model capture the decoder's `layers`: an encoder that reads as
            many tokens would be scored on those of the decoder. `repeated_tokens` are the best inputs.
        tokens: (B, T) or (T,) integers, the inputs of the capture.

    Returns:
        `CircuitScores`: `print` shows a table, `plot_model(scores, "induction")` a picture, `ranking` the heads,
        and the difference of two compares models or checkpoints.

    Raises:
        TypeError: if `capture` is no `Capture`.
        ValueError: if the tokens do not fit any layer, or repeat nowhere, or if the capture holds heads out of order.

    Source: Olsson et al., "In-context Learning and Induction Heads", 2022; Elhage et al., 2021; Wang et al., 2022
        (duplicate-token heads).

    >>> import numpy as np
    >>> weights = np.eye(6)[[0, 0, 1, 1, 2, 3]][None, None]  # from the second half to what followed the first time
    >>> scores = circuit_scores(Capture({"a": weights}, {"a": "causal"}), [5, 6, 7, 5, 6, 7])
    >>> print(scores)
    layer  head   previous  duplicate  induction
    a         0      0.400      0.000      1.000
    """
    if not isinstance(capture, Capture):
        raise TypeError(f"`capture` must be a Capture. Received: {type(capture).__name__}")
    ids = np.asarray(tokens)
    ids = ids[None] if ids.ndim == 1 else ids
    if ids.ndim != 2 or ids.dtype.kind not in "iu":
        raise ValueError(
            f"`tokens` must be integers (B, T) or (T,). Received: {ids.dtype} of shape {np.shape(tokens)}"
        )
    B, T = ids.shape
    names = [
        name
        for name in capture
        if capture.kinds[name] != "cross"
        and capture.is_whole(name)
        and capture.weights[name].shape[::2] == (B, T)
        and capture.weights[name].shape[3] == T
    ]
    if not names:
        shapes = {name: capture.weights[name].shape for name in capture}
        raise ValueError(
            f"`capture` must have whole self-attention of the tokens {ids.shape}. Received: weights of {shapes}"
        )
    for name in names:
        if capture.heads[name] != tuple(range(len(capture.heads[name]))):
            raise ValueError(
                "`capture` must hold all heads in order: capture without `heads`. "
                f"Received: heads {capture.heads[name]} of {name!r}"
            )
    same = (ids[:, :, None] == ids[:, None, :]) & np.tri(T, T, -1, dtype=bool)  # key before query
    after = np.zeros_like(same)
    after[:, :, 1:] = same[:, :, :-1]
    if not same.any():
        raise ValueError(
            "`tokens` must repeat, as those of `repeated_tokens`. Received: tokens that are all different"
        )
    wanted = {
        "previous": np.broadcast_to(np.eye(T, k=-1, dtype=bool), same.shape),
        "duplicate": same,
        "induction": after,
    }
    return CircuitScores(
        {
            kind: {name: _mean_share(capture.weights[name], wanted[kind]) for name in names}
            for kind in SCORES
        }
    )


def repeated_tokens(
    vocabulary: int, length: int, *, batch: int = 1, first: int | None = None, seed: int = 0
) -> NDArray[np.int64]:
    """Return random tokens, and then the same tokens again: what induction heads can predict.

    Args:
        vocabulary: the tokens are in [1, vocabulary).
        length: how many tokens are repeated, all different if the vocabulary has as many.
        batch: the number of rows B.
        first: a token before them, such as that of the beginning of a text. Default: none.
        seed: of the random numbers.

    Returns:
        (B, 2 length), or (B, 1 + 2 length).

    >>> tokens = repeated_tokens(50, 3, first=0)
    >>> tokens.shape, int(tokens[0, 0]), (tokens[0, 1:4] == tokens[0, 4:]).tolist()
    ((1, 7), 0, [True, True, True])
    """
    vocabulary = check_integer("vocabulary", vocabulary, least=2)
    length, batch = check_integer("length", length, least=1), check_integer("batch", batch, least=1)
    random = np.random.default_rng(seed)
    replace = length > vocabulary - 1
    rows = np.stack(
        [1 + random.choice(vocabulary - 1, length, replace=replace) for _ in range(batch)]
    )
    parts = [rows, rows] if first is None else [np.full((batch, 1), first), rows, rows]
    return np.concatenate(parts, axis=1)


def _mean_share(weights: Floats, wanted: NDArray[np.bool_]) -> Floats:
    """Return the mean weight on the wanted keys (B, T, S) over the queries that have any, (N,)."""
    shares = np.einsum("bnts,bts->bnt", weights, wanted.astype(weights.dtype))
    counts = np.any(wanted, axis=-1)
    return (shares * counts[:, None]).sum((0, 2)) / max(1, counts.sum())
