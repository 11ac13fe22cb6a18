"""One attention of a running model: its weights, row by row, and its output."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from keras import ops
from numpy.typing import NDArray

from heed.inspect._row_statistics import Floats
from heed.ops import Mask
from heed.ops.arguments import dot_product
from heed.ops.attention import DEFAULT_OPTIONS
from heed.ops.dispatch import select_for_weights, select_implementation
from heed.ops.mask_rules import offset
from heed.ops.options import AttentionOptions
from heed.ops.spec import AttentionSpec, Tensors

# Pairs with scores below these are hidden: Keras and KerasHub set or add -1e9, or in float16 -3e4 or -65504.
_HIDDEN = {"float16": -2e4}
_FAR_BELOW = -1e8


class WeightRows(Protocol):
    """The weights of an attention, row by row.

    Attributes:
        sizes: (B, N, T, S).
        start: the key position of query 0, () or (B,).
        numbers_per_weight: how many numbers computing one weight holds in memory.
    """

    sizes: tuple[int, int, int, int]
    start: NDArray[np.int64]
    numbers_per_weight: int

    def compute_weights(self, rows: range, heads: Sequence[int]) -> Floats:
        """Return (B, len(heads), len(rows), S), float32 or float64; rows sum to 1, or 0 if they see no key."""
        ...


class ObservedAttention(WeightRows, Protocol):
    """One attention.

    Attributes:
        output: the tensor that the model uses next: the result, or the weights themselves.
    """

    output: Any

    @property
    def replaced_rows(self) -> frozenset[int]:
        """The queries whose weights have been replaced."""
        ...

    @property
    def causal(self) -> bool:
        """Whether no query sees a later key."""
        ...

    def is_projected_by(self, layer: Any) -> bool:
        """Return whether a layer, or None, projects the heads as they are."""
        ...

    def hide(self, hidden: NDArray[np.bool_]) -> ObservedAttention:
        """Return this attention with more pairs hidden, (N, T, S)."""
        ...

    def replace_weights(self, rows: Sequence[int], weights: Floats) -> ObservedAttention:
        """Return this attention with other weights (B, N, len(rows), S) of some queries."""
        ...

    def compute_gradient(self, gradient: Any) -> Floats:
        """Return dL/dw, (B, N, T, S), from the gradient of the output."""
        ...


class FusedAttention:
    """An attention that keeps no weights: they are recomputed, block by block."""

    def __init__(self, output: Any, spec: AttentionSpec, tensors: Tensors) -> None:
        self.output = output
        self._spec, self._tensors = spec, tensors
        self._replaced: dict[int, Floats] = {}
        axis = 1 if spec.heads_axis is None else 3 - spec.heads_axis
        T, S = (int(x.shape[axis]) for x in (tensors.query, tensors.key))
        self.sizes = (int(output.shape[0]), spec.heads[0], T, S)
        align = 0 if spec.mask is None else spec.mask.alignment
        self.start = np.asarray(offset(align, T, S))
        self.numbers_per_weight = spec.score.numbers_per_pair(spec.widths[0])

    @classmethod
    def from_keras(
        cls,
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
        """Describe a call of the attention function of Keras' backend."""
        query, key, value = (ops.convert_to_tensor(x) for x in (query, key, value))
        options: AttentionOptions = {  # Keras has a soft cap on TPUs only
            **DEFAULT_OPTIONS,
            "mask": None if mask is None else Mask.dense(ops.cast(mask, "bool")),
            "bias": None if bias is None else ops.cast(bias, "float32"),
            "is_causal": is_causal,
            "scale": None if scale is None else float(scale),
        }
        key, value = (ops.cast(x, query.dtype) for x in (key, value))
        return cls(output, *dot_product(options, query, key, value))

    @property
    def causal(self) -> bool:
        mask = self._spec.mask
        return mask is not None and any(map(self._hides_the_future, mask.rules))

    def _hides_the_future(self, rule: Any) -> bool:
        if rule.dense is None:
            return rule.hides_future
        return _is_lower_triangle(ops.convert_to_numpy(rule.dense), self.sizes)

    def hide(self, hidden: NDArray[np.bool_]) -> FusedAttention:
        visible = ops.convert_to_tensor(~hidden[None] if self._spec.heads_axis else ~hidden)
        mask = Mask.dense(visible)
        mask = mask if self._spec.mask is None else self._spec.mask & mask
        spec = dataclasses.replace(self._spec, mask=mask)
        output, _ = select_implementation(spec).attend(spec, self._tensors, return_lse=False)
        changed = FusedAttention(output, spec, self._tensors)
        changed._replaced = self._replaced
        return changed._take_rows(self, np.any(hidden, axis=-1))

    def replace_weights(self, rows: Sequence[int], weights: Floats) -> FusedAttention:
        value = self.values
        new = ops.matmul(ops.cast(weights, value.dtype), value)  # (B, N, rows, V)
        heads = ops.cast(_swap_heads(spread(new, rows, self.sizes[2], 2)), self.output.dtype)
        chosen = np.zeros((self.sizes[1], self.sizes[2]), bool)
        chosen[:, list(rows)] = True
        changed = self.replace_heads(heads)._take_rows(self, chosen)
        by_row = {row: weights[:, :, number] for number, row in enumerate(rows)}
        changed._replaced = {**self._replaced, **by_row}
        return changed

    def _take_rows(self, other: FusedAttention, rows: NDArray[np.bool_]) -> FusedAttention:
        """Return this attention with the output of another one but in some rows (N, T)."""
        return self.replace_heads(ops.where(rows.T[None, :, :, None], self.heads, other.heads))

    def compute_weights(self, rows: range, heads: Sequence[int]) -> Floats:
        weights = self._recompute(rows, heads)
        if not self._replaced:
            return weights
        weights = np.array(weights)
        for number, row in enumerate(rows):
            if row in self._replaced:
                weights[:, :, number] = self._replaced[row][:, list(heads)]
        return weights

    def _recompute(self, rows: range, heads: Sequence[int]) -> Floats:
        every = tuple(heads) == tuple(range(self.sizes[1]))
        chosen = None if every else list(heads)
        return ops.convert_to_numpy(
            select_for_weights().weights(
                self._spec, self._tensors, heads=chosen, rows=list(rows), keys=None, lse=None
            )
        )

    @property
    def replaced_rows(self) -> frozenset[int]:
        return frozenset(self._replaced)

    @property
    def heads(self) -> Any:
        """The output of each head, (B, T, N, V)."""
        if self._spec.heads_axis is None:
            return self.output[:, :, None]
        return self.output if self._spec.heads_axis == 2 else _swap_heads(self.output)

    @property
    def values(self) -> Any:
        """The value of each key for each head, (B, N, S, V)."""
        value = self._heads_first(self._tensors.value)
        return ops.repeat(value, self.sizes[1] // value.shape[1], axis=1)

    def replace_heads(self, heads: Any) -> FusedAttention:
        """Return this attention with other outputs of its heads."""
        if self._spec.heads_axis is None:
            output = heads[:, :, 0]
        else:
            output = heads if self._spec.heads_axis == 2 else _swap_heads(heads)
        changed = copy.copy(self)
        changed.output = output
        return changed

    def is_projected_by(self, layer: Any) -> bool:
        kernel = getattr(layer, "kernel", None)
        # Not where heads have several widths.
        width = self.sizes[1] * int(self._spec.widths[1])
        return kernel is not None and math.prod(kernel.shape[:-1]) == width

    def compute_gradient(self, gradient: Any) -> Floats:
        value = ops.transpose(self.values, (0, 1, 3, 2))
        return ops.convert_to_numpy(ops.matmul(self._heads_first(gradient), value))

    def _heads_first(self, x: Any) -> Any:
        """Return (B, N, T, V), at least float32."""
        x = widen(x)
        axis = self._spec.heads_axis
        if axis is None:
            return x[:, None]
        return _swap_heads(x) if axis == 2 else x


class StepwiseAttention:
    """The attention of a recurrent decoder: T steps of one query each, with sizes (B, N, 1, S)."""

    def __init__(self, steps: Sequence[ObservedAttention]) -> None:
        self._steps = steps
        B, N, _, S = steps[0].sizes
        self.sizes = (B, N, len(steps), S)
        self.start = steps[0].start
        self.numbers_per_weight = steps[0].numbers_per_weight

    def compute_weights(self, rows: range, heads: Sequence[int]) -> Floats:
        each = [self._steps[row].compute_weights(range(1), heads) for row in rows]
        return np.concatenate(each, axis=2)


class SoftmaxAttention:
    """An attention whose weights come out of a softmax in the layer.

    They are (B, N, T, S), or have more axes for batch and positions, or none for heads. `scores` and `mask`, which
    broadcasts to them, are the arguments of the softmax.
    """

    start = np.zeros((), np.int64)
    numbers_per_weight = 1
    replaced_rows: frozenset[int] = frozenset()

    def __init__(self, layer: Any, weights: Any, scores: Any, mask: Any) -> None:
        self.output, self._scores, self._mask = weights, scores, mask
        n = len(getattr(layer, "_attention_axes", None) or ())
        # Keras: batch and free axes, heads, queries, keys. Others: batch, heads (grouped, or none), queries, keys.
        borders = [-2 * n - 1, -2 * n, -n] if n and len(weights.shape) > 3 else [1, -2, -1]
        B, N, T, S = (int(np.prod(part)) for part in np.split(np.array(weights.shape), borders))
        self.sizes = (B, N, T, S)

    @property
    def causal(self) -> bool:
        T, S = self.sizes[2:]
        if T != S:
            return False
        scores = ops.reshape(self._scores, self.sizes)[:1, :1]
        hidden = ops.convert_to_numpy(self._hidden(scores, slice(0, T)))
        return _is_lower_triangle(~hidden, self.sizes)

    def compute_weights(self, rows: range, heads: Sequence[int]) -> Floats:
        part = slice(rows.start, rows.stop)
        weights = self._part(self.output, part)
        visible = ops.logical_not(self._hidden(self._part(self._scores, part), part))
        # Some softmaxes give a row without visible keys uniform weights.
        weights = ops.where(ops.any(visible, axis=-1, keepdims=True), weights, 0.0)
        return ops.convert_to_numpy(ops.take(widen(weights), list(heads), axis=1))

    def is_projected_by(self, layer: Any) -> bool:
        return layer is not None

    def hide(self, hidden: NDArray[np.bool_]) -> SoftmaxAttention:
        T = self.sizes[2]
        scores = ops.reshape(self._scores, self.sizes)
        all_hidden = ops.logical_or(self._hidden(scores, slice(0, T)), hidden[None])
        wide = ops.where(all_hidden, -np.inf, widen(scores))
        top = ops.max(wide, axis=-1, keepdims=True)
        # No softmax of Keras, which would be observed.
        powers = ops.exp(wide - ops.where(ops.isfinite(top), top, ops.zeros_like(top)))
        total = ops.sum(powers, axis=-1, keepdims=True)
        new = powers / ops.where(total > 0, total, ops.ones_like(total))
        weights = ops.reshape(self.output, self.sizes)
        new = ops.where(
            np.any(hidden, axis=-1, keepdims=True)[None], ops.cast(new, weights.dtype), weights
        )
        changed = copy.copy(self)
        changed.output = ops.reshape(new, self.output.shape)
        hiding = ops.cast(_HIDDEN.get(str(ops.dtype(scores)), 2 * _FAR_BELOW), scores.dtype)
        changed._scores = ops.reshape(ops.where(all_hidden, hiding, scores), self._scores.shape)
        return changed

    def replace_weights(self, rows: Sequence[int], weights: Floats) -> SoftmaxAttention:
        chosen = np.zeros((self.sizes[2], 1), bool)
        chosen[list(rows)] = True
        old = ops.reshape(self.output, self.sizes)
        new = ops.cast(spread(weights, rows, self.sizes[2], 2), old.dtype)
        changed = copy.copy(self)
        changed.output = ops.reshape(ops.where(chosen, new, old), self.output.shape)
        changed.replaced_rows = self.replaced_rows | set(rows)
        return changed

    def compute_gradient(self, gradient: Any) -> Floats:
        return ops.convert_to_numpy(widen(ops.reshape(gradient, self.sizes)))

    def _part(self, x: Any, rows: slice) -> Any:
        return ops.reshape(x, self.sizes)[:, :, rows]

    def _hidden(self, scores: Any, rows: slice) -> Any:
        """Return which pairs of these rows of scores (b, n, t, S) are hidden."""
        limit = _HIDDEN.get(str(ops.dtype(scores)), _FAR_BELOW)
        hidden = ops.less_equal(scores, limit)
        if self._mask is None:
            return hidden
        mask = ops.broadcast_to(ops.cast(self._mask, "bool"), self.output.shape)
        mask = ops.reshape(mask, self.sizes)[: scores.shape[0], : scores.shape[1], rows]
        return ops.logical_or(hidden, ops.logical_not(mask))


def widen(x: Any) -> Any:
    """Cast to float32, unless it is float64."""
    return x if "float64" in str(x.dtype) else ops.cast(x, "float32")


def spread(x: Any, places: Any, length: int, axis: int) -> Any:
    """Return `length` entries along an axis, those of `x` in their places; all others are not to be read."""
    order = np.zeros(length, "int32")
    order[list(places)] = np.arange(len(places))
    return ops.take(x, order, axis=axis)


def _swap_heads(x: Any) -> Any:
    """Map (B, N, T, V) to (B, T, N, V), or back."""
    return ops.transpose(x, (0, 2, 1, 3))


def _is_lower_triangle(mask: NDArray[np.bool_], sizes: tuple[int, int, int, int]) -> bool:
    """Return whether a mask (..., T, S) hides every key after the query's own position."""
    T, S = sizes[2:]
    if mask.shape[-2:] != (T, S) or T != S or T < 2:
        return False
    return not np.triu(mask, 1).any()
