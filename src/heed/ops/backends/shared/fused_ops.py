"""The fused row-wise ops in `keras.ops`, differentiated by the backend."""

from __future__ import annotations

import math
from typing import Any

from keras import ops

from heed.ops import checks
from heed.ops.backends import NO_LABEL
from heed.ops.backends.shared._dropout import keep_mask
from heed.ops.backends.shared.operands import fill
from heed.ops.scores import number
from heed.ops.sizes import Span, size, sizes


class PlainFusedOps:
    """The fused row-wise ops in `keras.ops`. Numbers may be tensors () where the sizes are known."""

    def cross_entropy(self, logits: Any, labels: Any, smoothing: float, ignored: int) -> Any:
        """Return the losses. Labels are checked by `checks.check_labels` where they are known."""
        counts = ops.not_equal(labels, ignored)
        # First of all, so that NaN in ignored rows stays out of gradients, too.
        x = _widen(logits)
        if 0 in x.shape:  # PyTorch has no maximum of nothing
            return ops.sum(x, axis=-1)
        if not isinstance(ignored, int) or ignored != NO_LABEL:
            x = fill(~counts[..., None], x, 0.0)
        # Relative to the largest logit, which cancels out and so gets no gradient.
        below = ops.stop_gradient(ops.max(x, axis=-1, keepdims=True)) - x
        right = ops.equal(ops.arange(size(logits, -1), dtype="int32"), labels[..., None])
        of_label = ops.sum(fill(~right, below, 0.0), axis=-1)
        share, spread = number(smoothing, x), _mean(below)[..., 0]
        losses = ops.log(ops.sum(ops.exp(-below), axis=-1)) + number(1 - smoothing, x) * of_label
        if not isinstance(smoothing, (int, float)):
            losses = losses + share * fill(ops.equal(share, 0), spread, 0.0)
        elif smoothing:
            losses = losses + share * spread
        return fill(~counts, losses, 0.0)

    def normalization(self, x: Any, scale: Any, offset: Any, epsilon: float, rms: bool) -> Any:
        y = _widen(x)
        if not isinstance(rms, bool):
            y = y - fill(rms, _mean(y), 0.0)
        elif not rms:
            y = y - _mean(y)
        square = _mean(ops.square(y))
        y = y * ops.rsqrt(square + number(epsilon, y))
        if scale is not None:
            y = y * scale
        if offset is not None:
            y = y + offset
        return ops.cast(y, x.dtype)

    def dropout(self, x: Any, residual: Any, rate: float, seed: Any) -> Any:
        *front, width = sizes(x)
        # The mask of attention in head 0 of batch entry 0, with rows for queries and columns for keys.
        rows = Span(0, math.prod(front))
        keep = ops.reshape(keep_mask(rate, seed, 1, 1, rows, Span(0, width)), (*front, width))
        wide = _widen(x)
        y = fill(~keep, wide * number(1 / (1 - rate), wide), 0.0)
        return ops.cast(y if residual is None else _widen(residual) + y, x.dtype)

    def product(self, x: Any, weights: Any, transposed: bool) -> Any | None:
        return None

    def write(self, cache: Any, update: Any, index: Any) -> Any | None:
        return None

    def argmax(self, x: Any) -> Any:
        return ops.cast(ops.argmax(x, axis=-1), "int32")


def _widen(x: Any) -> Any:
    """Return `x` in the type of computation."""
    return ops.cast(x, checks.compute_type(checks.dtype_of(x)))


def _mean(x: Any) -> Any:
    """Return the mean (..., 1); `keras.ops.mean` computes in float32 on other backends than TensorFlow."""
    width = size(x, -1)
    return ops.sum(x, axis=-1, keepdims=True) / (
        width if isinstance(width, int) else ops.cast(width, x.dtype)
    )
