"""The reference: attention in float64 NumPy, one query row at a time, by the formulas.

Letters: B batch, T query length, S key length, N query heads, K key/value heads, H width of query
and key, V width of value, U units of additive attention.

Each row first selects its visible keys and uses nothing else. So masked NaN and Inf cannot enter, and a
row without keys keeps its initial zeros. Forward and backward are written separately; `test_reference.py`
checks one against the other by finite differences. It is slow, and independent of TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray

# A bias of this or less hides its key as -inf does.
HIDING_BIAS = -1e30


@dataclass(frozen=True)
class Forward:
    """The results of a forward pass.

    `out` (B,T,N,V), `weights` (B,N,T,S) after dropout, `probabilities` (B,N,T,S) before dropout,
    `lse` (B,N,T). Additive attention has no heads: (B,T,V), (B,T,S), (B,T,S), (B,T).
    """

    out: Array
    weights: Array
    probabilities: Array
    lse: Array


@dataclass(frozen=True)
class Backward:
    """Gradients of `sum(out * d_out) + sum(lse * d_lse)`, each in the shape of its argument."""

    query: Array
    key: Array
    value: Array
    bias: Array | None = None
    score_vector: Array | None = None


def _wide(array: Any) -> Array:
    """Return as float64; longdouble stays, for a reference more exact than float64."""
    array = np.asarray(array)
    return array if array.dtype == np.longdouble else array.astype(np.float64)


def unbroadcast(gradient: Array, shape: tuple[int, ...]) -> Array:
    """Sum `gradient` over the axes along which an array of `shape` was broadcast."""
    extra = gradient.ndim - len(shape)
    gradient = gradient.sum(axis=tuple(range(extra)))
    axes = tuple(i for i, size in enumerate(shape) if size == 1 and gradient.shape[i] != 1)
    return gradient.sum(axis=axes, keepdims=True)


def alibi_bias(slopes: Any, batch: int, queries: int, keys: int, align: Any = 0) -> Array:
    """Return -slope_n * |i + a_b - j| as (B,N,T,S); `align` is a number or one per batch item."""
    slopes = _wide(slopes)
    starts = np.broadcast_to(np.asarray(align), (batch,))
    bias = np.zeros((batch, len(slopes), queries, keys))
    for b in range(batch):
        for n in range(len(slopes)):
            for i in range(queries):
                for j in range(keys):
                    bias[b, n, i, j] = -slopes[n] * abs(i + int(starts[b]) - j)
    return bias


class _DotProduct:
    """The arguments of dot-product attention; those per score are broadcast to (B,N,T,S)."""

    def __init__(
        self,
        query: Any,
        key: Any,
        value: Any,
        *,
        mask: Any = None,
        bias: Any = None,
        scale: float | None = None,
        soft_cap: float | None = None,
        alibi_slopes: Any = None,
        align: Any = 0,
        keep: Any = None,
        dropout: float = 0.0,
    ) -> None:
        self.query, self.key, self.value = _wide(query), _wide(key), _wide(value)
        self.batch, self.queries, self.heads, self.width = self.query.shape
        self.keys, self.key_heads = self.key.shape[1:3]
        self.group = self.heads // self.key_heads
        self.scores = (self.batch, self.heads, self.queries, self.keys)
        self.mask = np.broadcast_to(True if mask is None else np.asarray(mask, bool), self.scores)
        self.bias_shape = None if bias is None else np.shape(bias)
        self.bias = np.broadcast_to(0.0 if bias is None else _wide(bias), self.scores)
        self.mask = self.mask & ~(self.bias <= HIDING_BIAS)
        if alibi_slopes is not None:
            self.bias = self.bias + alibi_bias(
                alibi_slopes, self.batch, self.queries, self.keys, align
            )
        self.scale = 1.0 / np.sqrt(self.width) if scale is None else float(scale)
        self.soft_cap = soft_cap
        kept = np.broadcast_to(True if keep is None else np.asarray(keep, bool), self.scores)
        self.multiplier = kept / (1.0 - dropout)

    def rows(self) -> list[tuple[int, int, int]]:
        return [
            (b, n, i)
            for b in range(self.batch)
            for n in range(self.heads)
            for i in range(self.queries)
        ]

    def visible(self, b: int, n: int, i: int) -> Array:
        """Return which keys the row may attend to: not masked, and not hidden by their bias."""
        return np.flatnonzero(self.mask[b, n, i])

    def row(self, b: int, n: int, i: int, visible: Array) -> tuple[Array, Array, float]:
        """Return probabilities over the visible keys, the derivative of the soft-cap, log-sum-exp."""
        scores = self.scale * (self.key[b, visible, n // self.group] @ self.query[b, i, n])
        slope = np.ones_like(scores)
        if self.soft_cap is not None:
            squashed = np.tanh(scores / self.soft_cap)
            scores = self.soft_cap * squashed
            slope = 1.0 - squashed**2
        probabilities, lse = softmax(scores + self.bias[b, n, i, visible])
        return probabilities, slope, lse


def softmax(logits: Array) -> tuple[Array, float]:
    """Return softmax of a non-empty vector, and its log-sum-exp."""
    largest = logits.max()
    exponentials = np.exp(logits - largest)
    total = exponentials.sum()
    return exponentials / total, float(largest + np.log(total))


def dot_product_attention(query: Any, key: Any, value: Any, **options: Any) -> Forward:
    """Return softmax(cap(scale * q.k) + bias) . v over the visible keys.

    Args: query (B,T,N,H); key (B,S,K,H); value (B,S,K,V); mask, bias, keep broadcastable to
    (B,N,T,S), mask and keep boolean; soft_cap c is c * tanh(x / c); alibi_slopes (N,) with align a
    number or (B,); dropout is the rate that the kept weights are divided by one minus of.
    """
    a = _DotProduct(query, key, value, **options)
    out = np.zeros((a.batch, a.queries, a.heads, a.value.shape[-1]))
    weights, probabilities = np.zeros(a.scores), np.zeros(a.scores)
    lse = np.full(a.scores[:3], -np.inf)
    for b, n, i in a.rows():
        visible = a.visible(b, n, i)
        if len(visible) == 0:
            continue
        p, _, lse[b, n, i] = a.row(b, n, i, visible)
        w = p * a.multiplier[b, n, i, visible]
        probabilities[b, n, i, visible] = p
        weights[b, n, i, visible] = w
        out[b, i, n] = w @ a.value[b, visible, n // a.group]
    return Forward(out, weights, probabilities, lse)


def dot_product_attention_backward(
    query: Any, key: Any, value: Any, d_out: Any, d_lse: Any = None, **options: Any
) -> Backward:
    """Return gradients for the cotangents `d_out` (B,T,N,V) and `d_lse` (B,N,T)."""
    a = _DotProduct(query, key, value, **options)
    d_out = _wide(d_out)
    d_lse = np.zeros(a.scores[:3]) if d_lse is None else _wide(d_lse)
    d_query, d_key, d_value = (np.zeros_like(x) for x in (a.query, a.key, a.value))
    d_bias = np.zeros(a.scores)
    for b, n, i in a.rows():
        visible = a.visible(b, n, i)
        if len(visible) == 0:
            continue
        g = n // a.group
        p, slope, _ = a.row(b, n, i, visible)
        multiplier = a.multiplier[b, n, i, visible]
        d_value[b, visible, g] += np.outer(p * multiplier, d_out[b, i, n])
        d_p = multiplier * (a.value[b, visible, g] @ d_out[b, i, n])
        d_logits = p * (d_p - p @ d_p) + p * d_lse[b, n, i]
        d_bias[b, n, i, visible] = d_logits
        d_scores = a.scale * slope * d_logits
        d_query[b, i, n] = d_scores @ a.key[b, visible, g]
        d_key[b, visible, g] += np.outer(d_scores, a.query[b, i, n])
    reduced = None if a.bias_shape is None else unbroadcast(d_bias, a.bias_shape)
    return Backward(d_query, d_key, d_value, reduced)


class _Additive:
    """The arguments of additive attention; mask and keep broadcast to (B,T,S)."""

    def __init__(
        self,
        query: Any,
        key: Any,
        value: Any,
        score_vector: Any,
        *,
        bias: Any = None,
        mask: Any = None,
        keep: Any = None,
        dropout: float = 0.0,
    ) -> None:
        self.query, self.key, self.value = _wide(query), _wide(key), _wide(value)
        self.score_vector = _wide(score_vector)
        self.bias = np.zeros_like(self.score_vector) if bias is None else _wide(bias)
        self.has_bias = bias is not None
        self.scores = (*self.query.shape[:2], self.key.shape[1])
        self.mask = np.broadcast_to(True if mask is None else np.asarray(mask, bool), self.scores)
        kept = np.broadcast_to(True if keep is None else np.asarray(keep, bool), self.scores)
        self.multiplier = kept / (1.0 - dropout)

    def rows(self) -> list[tuple[int, int]]:
        return [(b, i) for b in range(self.scores[0]) for i in range(self.scores[1])]

    def visible(self, b: int, i: int) -> Array:
        return np.flatnonzero(self.mask[b, i])

    def hidden(self, b: int, i: int, visible: Array) -> Array:
        return np.tanh(self.query[b, i] + self.key[b, visible] + self.bias)


def additive_attention(
    query: Any, key: Any, value: Any, score_vector: Any, **options: Any
) -> Forward:
    """Return softmax_j(sum_u score_vector_u * tanh(q_iu + k_ju + bias_u)) . v over the visible keys.

    Args: query (B,T,U); key (B,S,U); value (B,S,V); score_vector (U,); bias (U,); mask and keep
    broadcastable to (B,T,S).
    """
    a = _Additive(query, key, value, score_vector, **options)
    out = np.zeros((*a.scores[:2], a.value.shape[-1]))
    weights, probabilities = np.zeros(a.scores), np.zeros(a.scores)
    lse = np.full(a.scores[:2], -np.inf)
    for b, i in a.rows():
        visible = a.visible(b, i)
        if len(visible) == 0:
            continue
        p, lse[b, i] = softmax(a.hidden(b, i, visible) @ a.score_vector)
        w = p * a.multiplier[b, i, visible]
        probabilities[b, i, visible] = p
        weights[b, i, visible] = w
        out[b, i] = w @ a.value[b, visible]
    return Forward(out, weights, probabilities, lse)


def additive_attention_backward(
    query: Any,
    key: Any,
    value: Any,
    score_vector: Any,
    d_out: Any,
    d_lse: Any = None,
    **options: Any,
) -> Backward:
    """Return gradients for the cotangents `d_out` (B,T,V) and `d_lse` (B,T)."""
    a = _Additive(query, key, value, score_vector, **options)
    d_out = _wide(d_out)
    d_lse = np.zeros(a.scores[:2]) if d_lse is None else _wide(d_lse)
    d_query, d_key, d_value = (np.zeros_like(x) for x in (a.query, a.key, a.value))
    d_vector, d_bias = np.zeros_like(a.score_vector), np.zeros_like(a.bias)
    for b, i in a.rows():
        visible = a.visible(b, i)
        if len(visible) == 0:
            continue
        hidden = a.hidden(b, i, visible)
        p, _ = softmax(hidden @ a.score_vector)
        multiplier = a.multiplier[b, i, visible]
        d_value[b, visible] += np.outer(p * multiplier, d_out[b, i])
        d_p = multiplier * (a.value[b, visible] @ d_out[b, i])
        d_scores = p * (d_p - p @ d_p) + p * d_lse[b, i]
        d_vector += d_scores @ hidden
        d_inside = np.outer(d_scores, a.score_vector) * (1.0 - hidden**2)
        d_query[b, i] = d_inside.sum(axis=0)
        d_key[b, visible] += d_inside
        d_bias += d_inside.sum(axis=0)
    return Backward(d_query, d_key, d_value, d_bias if a.has_bias else None, d_vector)


# Fused row-wise ops, one row at a time. Letters: D width of a row, C classes.


def _rows(array: Any) -> list[tuple[int, ...]]:
    """Return the index of each row of (..., D)."""
    return list(np.ndindex(np.shape(array)[:-1]))


def cross_entropy(
    logits: Any, labels: Any, smoothing: float = 0.0, ignored: int | None = None
) -> Array:
    """Return -sum_c target_c log softmax(logits)_c, the target 1 - e + e/C at the label, else e/C; 0 if ignored."""
    logits, labels = _wide(logits), np.asarray(labels)
    losses = np.zeros(labels.shape)
    for row in _rows(logits):
        if labels[row] != ignored:
            target = np.full(logits.shape[-1], smoothing / logits.shape[-1])
            target[labels[row]] += 1.0 - smoothing
            below = logits[row] - logits[row].max()
            _, lse = softmax(below)
            possible = target > 0
            losses[row] = target[possible] @ (lse - below[possible])
    return losses


def cross_entropy_backward(
    logits: Any, labels: Any, d_losses: Any, smoothing: float = 0.0, ignored: int | None = None
) -> Array:
    """Return the gradient of the logits for the cotangents `d_losses` (...)."""
    logits, labels = _wide(logits), np.asarray(labels)
    d_losses, d_logits = _wide(d_losses), np.zeros_like(logits)
    for row in _rows(logits):
        if labels[row] != ignored:
            target = np.full(logits.shape[-1], smoothing / logits.shape[-1])
            target[labels[row]] += 1.0 - smoothing
            d_logits[row] = d_losses[row] * (softmax(logits[row])[0] - target)
    return d_logits


def normalization(
    x: Any, scale: Any = None, offset: Any = None, epsilon: float = 1e-6, rms: bool = False
) -> Array:
    """Return (x - mean) / sqrt(variance + epsilon) * scale + offset over (..., D); RMS takes 0 for the mean."""
    x = _wide(x)
    y = np.zeros_like(x)
    scale = np.ones(x.shape[-1]) if scale is None else _wide(scale)
    offset = np.zeros(x.shape[-1]) if offset is None else _wide(offset)
    for row in _rows(x):
        centred = x[row] if rms else x[row] - x[row].mean()
        y[row] = centred / np.sqrt((centred**2).mean() + epsilon) * scale + offset
    return y


def normalization_backward(
    x: Any, d_y: Any, scale: Any = None, epsilon: float = 1e-6, rms: bool = False
) -> tuple[Array, Array, Array]:
    """Return gradients of x, scale and offset for the cotangents `d_y` (..., D)."""
    x, d_y = _wide(x), _wide(d_y)
    scale = np.ones(x.shape[-1]) if scale is None else _wide(scale)
    d_x, d_scale, d_offset = np.zeros_like(x), np.zeros(x.shape[-1]), np.zeros(x.shape[-1])
    for row in _rows(x):
        centred = x[row] if rms else x[row] - x[row].mean()
        inverse = 1.0 / np.sqrt((centred**2).mean() + epsilon)
        normal, d_normal = centred * inverse, d_y[row] * scale
        d_scale += d_y[row] * normal
        d_offset += d_y[row]
        d_x[row] = inverse * (d_normal - normal * (d_normal * normal).mean())
        if not rms:
            d_x[row] -= d_x[row].mean()
    return d_x, d_scale, d_offset
