"""The fused row-wise ops: what each computes, in `keras.ops`."""

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


class FusedOps:
    """The fused row-wise ops, differentiated by the backend, which overrides those that it has kernels for.

    Each works along the last axis, on checked arguments. The type of computation is float64 for float64, else float32.
    Everything is differentiable twice. Numbers may be tensors () where the sizes are known.
    """

    def cross_entropy(self, logits: Any, labels: Any, smoothing: float, ignored: int) -> Any:
        """Return losses (...) in the type of computation; see `softmax_cross_entropy`.

        Args:
            logits: (..., C).
            labels: (...) int32, checked by `checks.check_labels` where they are known.
            smoothing: in [0, 1).
            ignored: the label of rows that do not count, or `NO_LABEL`.
        """
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
        """Return the result of `layer_normalization`, or with `rms` of `rms_normalization`, in the dtype of `x`.

        Args:
            x: (..., D).
            scale, offset: (D,) in the type of computation, or None for 1 and 0.
            epsilon: above 0.
        """
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
        """Return the result of `dropout`, in the dtype of `x`.

        Args:
            x: (..., D).
            residual: like `x`, or None for 0.
            rate: in (0, 1).
            seed: (2,) uint32.
        """
        *front, width = sizes(x)
        # The mask of attention in head 0 of batch entry 0, with rows for queries and columns for keys.
        rows = Span(0, math.prod(front))
        keep = ops.reshape(keep_mask(rate, seed, 1, 1, rows, Span(0, width)), (*front, width))
        wide = _widen(x)
        y = fill(~keep, wide * number(1 / (1 - rate), wide), 0.0)
        return ops.cast(y if residual is None else _widen(residual) + y, x.dtype)

    def product(self, x: Any, weights: Any, transposed: bool) -> Any | None:
        """Return the product (R, G, N) of rows with the weights of each group g, or None to leave it to the backend.

        y[r, g, n] = sum over k of x[r, k] * weights[g, k, n]

        Args:
            x: (R, K), of a known shape.
            weights: (G, K, N), or (G, N, K) if `transposed`.
        """
        return None

    def write(self, cache: Any, update: Any, index: Any) -> Any | None:
        """Return the cache (B, L, ...) with `update` (B, T, ...) written at position `index`, or None as above.

        Writes in place if nothing else holds the cache.

        Args:
            index: () int32. Clamped so that the update fits, as by `keras.ops.slice_update`.
        """
        return None

    def argmax(self, x: Any) -> Any:
        """Return the index of the largest number of each row (..., D), the first of several: (...) int32."""
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
