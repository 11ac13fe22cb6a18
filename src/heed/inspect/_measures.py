"""Measures of heads, computed from captured weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from heed.config import one_of
from heed.inspect._capture import Capture
from heed.inspect._row_statistics import Floats

# The function and the unit of each measure.
MEASURES: dict[str, tuple[Callable[[Capture], Mapping[str, Floats]], str]] = {
    "entropy": (lambda capture: capture.entropy, "entropy (nats)"),
    "distance": (lambda capture: capture.distance, "mean distance (positions)"),
    "first": (lambda capture: capture.on_token(0), "share on the first token"),
    "previous": (lambda capture: capture.on_offset(-1), "share on the previous token"),
    "same": (lambda capture: capture.on_offset(0), "share on the token itself"),
    "next": (lambda capture: capture.on_offset(1), "share on the next token"),
}


def by_head(capture: Capture, measure: str, *, where: Any = None) -> dict[str, Floats]:
    """Return one number for each head: the mean of a measure over all queries that attend to any key.

    Args:
        capture: the weights; pooled pictures and chosen rows give the same numbers as whole ones.
        measure: "entropy" in nats, "distance" in positions, or the share of the weight on the "first", "previous",
            "same" or "next" token.
        where: (B, T) booleans, the queries that count, such as those that are not padding. Default: all. Layers with
            another T count all of theirs.

    Returns:
        (N,) numbers by layer name, NaN where no query counts.

    Raises:
        ValueError: if the measure is unknown, or `where` fits no layer.

    >>> import numpy as np
    >>> weights = np.eye(4)[[0, 0, 1, 2]][None, None]  # each token attends to the previous one
    >>> float(by_head(Capture({"a": weights}, {"a": "causal"}), "previous")["a"][0])
    0.75
    """
    compute, _ = MEASURES[one_of(MEASURES).check("measure", measure)]
    given = None if where is None else np.asarray(where, bool)
    shapes = {name: (len(capture.weights[name]), capture.lengths[name][0]) for name in capture}
    if given is not None and given.shape not in shapes.values():
        possible = " or ".join(map(str, sorted(set(shapes.values()))))
        raise ValueError(
            f"`where` must have the shape (B, T) of a layer, {possible}. "
            f"Received: where.shape={given.shape}"
        )
    near, far = capture.on_offset(0), capture.distance
    means = {}
    for name, values in compute(capture).items():
        # A row with any weight has it at the query's own position or at a distance.
        counts = (near[name] > 0) | (far[name] > 0)
        if given is not None and given.shape == shapes[name]:
            counts &= given[:, None]
        number = counts.sum((0, 2))
        total = np.where(counts, values, 0).sum((0, 2))
        means[name] = np.where(number, total / np.maximum(number, 1), np.nan)
    return means


def head_similarity(capture: Capture, layer: str, other: str | None = None) -> Floats:
    """Return how alike the heads of a layer, or of two layers, distribute their weight.

    similarity_nm = 1 - mean_i JS(w_ni, w_mi) / ln 2, with the Jensen-Shannon divergence
    JS(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2, over the rows i that attend to any key in both.

    Args:
        capture: the weights. The rows of a pooled picture are compared as they are.
        layer: name of a layer.
        other: name of another layer, with a picture of the same size. Default: `layer`.

    Returns:
        (N, N of the other), in [0, 1]: 1 for identical weights, 0 for heads that share no key; NaN where no row attends
        to any key in both.

    Raises:
        ValueError: if a layer does not exist, or the pictures differ in size.

    Source: Clark et al., "What Does BERT Look At?", 2019, section 6, which sums JS instead of averaging it.

    >>> import numpy as np
    >>> weights = np.stack([np.eye(3), np.eye(3), np.eye(3)[::-1]])[None]
    >>> head_similarity(Capture({"a": weights}, {"a": "self"}), "a").round(2).tolist()
    [[1.0, 1.0, 0.33], [1.0, 1.0, 0.33], [0.33, 0.33, 1.0]]
    """
    one = capture.weights[capture.check_layer(layer)]
    two = one if other is None else capture.weights[capture.check_layer(other)]
    if one.shape[0] != two.shape[0] or one.shape[2:] != two.shape[2:]:
        raise ValueError(
            "`other` must have weights of the same B, T and S as `layer`. "
            f"Received: {one.shape} of {layer!r}, {two.shape} of {other!r}"
        )
    result = np.full((one.shape[1], two.shape[1]), np.nan)
    for n, m in itertools.product(*map(range, result.shape)):
        p, q = (x.astype(np.float64) for x in (one[:, n], two[:, m]))
        both = (p.sum(-1) > 0) & (q.sum(-1) > 0)
        if both.any():
            p, q = p[both], q[both]
            divergence = _entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2
            result[n, m] = np.clip(1 - divergence.mean() / np.log(2), 0, 1)
    return result


def _entropy(p: Floats) -> Floats:
    return -(p * np.log(np.maximum(p, np.finfo(np.float64).tiny))).sum(-1)


def rollout(
    capture: Capture, layers: Sequence[str] | None = None, *, residual: float = 0.5
) -> dict[str, Floats]:
    """Compute attention rollout: how much of each input token reaches each position after each layer.

    R_l = A_l R_(l-1), with A_l = (1 - residual) mean_n W_ln + residual I and R_0 = I. A row of W that attends to
    nothing keeps its own token.

    Args:
        capture: whole weights of all heads (`capture(..., size=None)`).
        layers: names of self-attention layers in running order. Default: all layers of a capture without
            cross-attention.
        residual: the share of the residual connection, in [0, 1]. Default 0.5.

    Returns:
        (B, T, T) by layer name, float64; rows sum to 1.

    Raises:
        ValueError: if a layer is cross-attention, pooled or has chosen rows, if layers differ in T, or if `residual` is
            out of range.

    Source: Abnar and Zuidema, "Quantifying Attention Flow in Transformers", 2020 (their W_att is the mean
        over the heads of W).

    >>> import numpy as np
    >>> uniform = np.full((1, 1, 2, 2), 0.5)
    >>> flow = rollout(Capture({"a": uniform, "b": uniform}, {"a": "self", "b": "self"}))
    >>> flow["a"][0].tolist(), flow["b"][0].tolist()
    ([[0.75, 0.25], [0.25, 0.75]], [[0.625, 0.375], [0.375, 0.625]])
    """
    if not 0 <= residual <= 1:
        raise ValueError(f"`residual` must be in [0, 1]. Received: residual={residual}")
    names = [capture.check_layer(name) for name in (capture.names if layers is None else layers)]
    for name in names:
        if capture.kinds[name] == "cross" or not capture.is_whole(name):
            state = "cross-attention" if capture.kinds[name] == "cross" else "not whole"
            raise ValueError(
                "`layers` must name self-attention of one sequence, captured whole (size=None). "
                f"Received: {name!r}, which is {state}"
            )
    shapes = {capture.weights[name].shape[::2] for name in names}
    if len(shapes) != 1:
        raise ValueError(
            "`layers` must all have the same B and T: name those of one stack. "
            f"Received: (B, T) of {', '.join(map(str, sorted(shapes))) or 'no layer'}"
        )
    reached: Floats | None = None
    flows = {}
    for name in names:
        mean = capture.weights[name].astype(np.float64).mean(1)
        mixed = (1 - residual) * mean + residual * np.eye(mean.shape[1])
        total = mixed.sum(-1, keepdims=True)
        mixed = np.where(total > 0, mixed / np.where(total > 0, total, 1), np.eye(mean.shape[1]))
        reached = mixed if reached is None else mixed @ reached
        flows[name] = reached
    return flows
