"""One attention of a running model: its weights, row by row, and what becomes of its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from keras import ops
from numpy.typing import NDArray

from heed.ops import Mask
from heed.ops.arguments import dot_product
from heed.ops.dispatch import select_for_weights
from heed.ops.mask_rules import offset
from heed.ops.spec import AttentionSpec, DotScore, Tensors

Floats = NDArray[np.floating[Any]]

# Scores below are those of hidden pairs: Keras and KerasHub put in or add -1e9, -3e4 or -65504 in float16.
_HIDDEN = {"float16": -2e4}
_FAR_BELOW = -1e8


class Rows(Protocol):
    """The weights of an attention, row by row.

    Attributes:
        sizes: (B, N, T, S).
        start: the key position at which query 0 stands, () or (B,).
        numbers_per_weight: how many numbers are held to compute one.
    """

    sizes: tuple[int, int, int, int]
    start: NDArray[np.int64]
    numbers_per_weight: int

    def weights(self, rows: range, heads: Sequence[int]) -> Floats:
        """(B, len(heads), len(rows), S), float32 or float64; rows sum to 1, or to 0 where they see nothing."""
        ...


class Seen(Rows, Protocol):
    """One attention.

    Attributes:
        output: the tensor that goes on: what it returns, or the weights themselves.
    """

    output: Any

    @property
    def causal(self) -> bool:
        """Whether queries see no later key."""
        ...

    def without(self, head: int) -> Any:
        """The output with this head giving nothing."""
        ...

    def weights_gradient(self, gradient: Any) -> Floats:
        """(B, N, T, S), from the gradient of the output."""
        ...


class FusedAttention:
    """An attention whose weights nobody held: they are computed anew, block by block."""

    def __init__(self, output: Any, spec: AttentionSpec, tensors: Tensors) -> None:
        self.output = output
        self._spec, self._tensors = spec, tensors
        axis = 1 if spec.heads_axis is None else 3 - spec.heads_axis
        T, S = (int(x.shape[axis]) for x in (tensors.query, tensors.key))
        self.sizes = (int(output.shape[0]), spec.heads[0], T, S)
        align = 0 if spec.mask is None else spec.mask.alignment
        self.start = np.asarray(offset(align, T, S))
        self.numbers_per_weight = 1 if isinstance(spec.score, DotScore) else spec.widths[0]

    @property
    def causal(self) -> bool:
        """See `Seen`."""
        mask = self._spec.mask
        return mask is not None and any(map(self._hides_the_future, mask.rules))

    def _hides_the_future(self, rule: Any) -> bool:
        if rule.dense is None:
            return rule.hides_future
        return _is_lower_triangle(np.asarray(rule.dense), self.sizes)

    def weights(self, rows: range, heads: Sequence[int]) -> Floats:
        """See `Seen`."""
        every = tuple(heads) == tuple(range(self.sizes[1]))
        chosen = None if every else list(heads)
        return ops.convert_to_numpy(
            select_for_weights().weights(
                self._spec, self._tensors, heads=chosen, rows=list(rows), keys=None, lse=None
            )
        )

    def without(self, head: int) -> Any:
        """See `Seen`."""
        axis = self._spec.heads_axis
        if axis is None:
            return ops.zeros_like(self.output)
        return _without(self.output, head, axis)

    def weights_gradient(self, gradient: Any) -> Floats:
        """See `Seen`: dL/dw_ij = dL/do_i . v_j."""
        gradient, value = self._heads_first(gradient), self._heads_first(self._tensors.value)
        value = ops.repeat(value, self.sizes[1] // value.shape[1], axis=1)
        return np.asarray(ops.matmul(gradient, ops.transpose(value, (0, 1, 3, 2))))

    def _heads_first(self, x: Any) -> Any:
        """(B, N, T, V), wide."""
        x = _wide(x)
        axis = self._spec.heads_axis
        if axis is None:
            return x[:, None]
        return ops.transpose(x, (0, 2, 1, 3)) if axis == 2 else x


class States:
    """The attention of single states, one after the other, as that of a sequence of T queries.

    Args:
        steps: what each of them asked, of sizes (B, N, 1, S).
    """

    def __init__(self, steps: Sequence[Seen]) -> None:
        self._steps = steps
        B, N, _, S = steps[0].sizes
        self.sizes = (B, N, len(steps), S)
        self.start = steps[0].start
        self.numbers_per_weight = steps[0].numbers_per_weight

    def weights(self, rows: range, heads: Sequence[int]) -> Floats:
        """See `Rows`."""
        each = [self._steps[row].weights(range(1), heads) for row in rows]
        return np.concatenate(each, axis=2)


def keras_attention(
    output: Any,
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    scale: Any = None,
    is_causal: bool = False,
    flash_attention: bool | None = None,
    attn_logits_soft_cap: float | None = None,
) -> FusedAttention:
    """What the attention of Keras' TensorFlow backend has computed, from its arguments."""
    query, key, value = (ops.convert_to_tensor(x) for x in (query, key, value))
    spec, tensors = dot_product(
        query,
        ops.cast(key, query.dtype),
        ops.cast(value, query.dtype),
        mask=None if mask is None else Mask.dense(ops.cast(mask, "bool")),
        bias=None if bias is None else ops.cast(bias, "float32"),
        is_causal=is_causal,
        scale=None if scale is None else float(scale),
        soft_cap=None,  # Keras ignores its soft cap on TensorFlow
        alibi_slopes=None,
        dropout=0.0,
        seed=None,
        layout="BTNH",
    )
    return FusedAttention(output, spec, tensors)


class SoftmaxWeights:
    """Weights that a layer of Keras holds itself: what its softmax returned.

    Args:
        layer: whose they are.
        weights: (B, N, T, S), with other axes for batch, heads or positions as the layer has them.
        scores: what went into the softmax.
        mask: what the softmax was told to hide, broadcastable to the scores, or None.
    """

    start = np.zeros((), np.int64)
    numbers_per_weight = 1

    def __init__(self, layer: Any, weights: Any, scores: Any, mask: Any) -> None:
        self.output, self._scores, self._mask = weights, scores, mask
        n = len(getattr(layer, "_attention_axes", None) or ())
        # Keras: batch and free axes, heads, queries, keys. Others: batch, heads (grouped, or none), queries, keys.
        borders = [-2 * n - 1, -2 * n, -n] if n and len(weights.shape) > 3 else [1, -2, -1]
        B, N, T, S = (int(np.prod(part)) for part in np.split(np.array(weights.shape), borders))
        self.sizes = (B, N, T, S)

    @property
    def causal(self) -> bool:
        """See `Seen`."""
        T, S = self.sizes[2:]
        if T != S:
            return False
        hidden = np.asarray(
            self._hidden(ops.reshape(self._scores, self.sizes)[:1, :1], slice(0, T))
        )
        return _is_lower_triangle(~hidden, self.sizes)

    def weights(self, rows: range, heads: Sequence[int]) -> Floats:
        """See `Seen`."""
        part = slice(rows.start, rows.stop)
        weights = self._part(self.output, part)
        seen = ops.logical_not(self._hidden(self._part(self._scores, part), part))
        # A row that sees nothing comes out of some softmaxes as an even spread.
        weights = ops.where(ops.any(seen, axis=-1, keepdims=True), weights, 0.0)
        return ops.take(_wide(weights), list(heads), axis=1).numpy()

    def without(self, head: int) -> Any:
        """See `Seen`."""
        shape = self.output.shape
        return ops.reshape(_without(ops.reshape(self.output, self.sizes), head, 1), shape)

    def weights_gradient(self, gradient: Any) -> Floats:
        """See `Seen`."""
        return np.asarray(_wide(ops.reshape(gradient, self.sizes)))

    def _part(self, x: Any, rows: slice) -> Any:
        return ops.reshape(x, self.sizes)[:, :, rows]

    def _hidden(self, scores: Any, rows: slice) -> Any:
        """Which pairs of these rows of scores (b, n, t, S) do not count."""
        limit = _HIDDEN.get(str(ops.dtype(scores)), _FAR_BELOW)
        hidden = ops.less_equal(scores, limit)
        if self._mask is None:
            return hidden
        mask = ops.broadcast_to(ops.cast(self._mask, "bool"), self.output.shape)
        mask = ops.reshape(mask, self.sizes)[: scores.shape[0], : scores.shape[1], rows]
        return ops.logical_or(hidden, ops.logical_not(mask))


def _wide(x: Any) -> Any:
    """In float32, or float64."""
    return x if "float64" in str(x.dtype) else ops.cast(x, "float32")


def _without(x: Any, head: int, axis: int) -> Any:
    shape = [1] * len(x.shape)
    shape[axis] = x.shape[axis]
    kept = ops.reshape(ops.not_equal(ops.arange(x.shape[axis]), head), shape)
    return ops.where(kept, x, ops.zeros((), x.dtype))


def _is_lower_triangle(mask: NDArray[np.bool_], sizes: tuple[int, int, int, int]) -> bool:
    """Whether a mask (..., T, S) hides every key behind the query's own place."""
    T, S = sizes[2:]
    if mask.shape[-2:] != (T, S) or T != S or T < 2:
        return False
    return not np.triu(mask, 1).any()
