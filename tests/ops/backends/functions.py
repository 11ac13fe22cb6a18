"""Ops as functions of one tensor (4, 6), to differentiate and to map them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from heed import Mask, ops

ROWS = np.random.default_rng(0).normal(size=(4, 6))


def as_heads(x: Any) -> Any:
    return x[None, :, None]


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "layer normalization": lambda x: ops.layer_normalization(x, x[0], x[1]),
    "RMS normalization": lambda x: ops.rms_normalization(x, x[0]),
    "cross entropy": lambda x: ops.softmax_cross_entropy(
        x, [1, 0, 5, 2], label_smoothing=0.1, ignore_class=2
    ),
    "dropout": lambda x: ops.dropout(x * x, 0.5, seed=3, residual=x),
    "rotary embedding": lambda x: ops.rotary_embedding(as_heads(x * x)),
    "position bias": lambda x: ops.relative_position_bias(x * x, 3, 5),
    "weights": lambda x: ops.attention_weights(
        as_heads(x), as_heads(x), mask=Mask.lengths([3]), rows=[0, 2], dropout=0.4, seed=1
    ),
    "weights by log-sum-exp": lambda x: ops.attention_weights(
        as_heads(x),
        as_heads(x),
        keys=[1],
        lse=ops.dot_product_attention(*[as_heads(x)] * 3, soft_cap=2.0, return_lse=True)[1],
        soft_cap=2.0,
    ),
}
