"""The rule of the device: which calls of Keras run on heed where the computer is no CPU.

There a call runs on heed if heed has a fused kernel for it, or if Keras would build scores that may not fit into
memory. Keras runs the others as well or better: by a fused kernel of its own, or at once where heed works in blocks.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from heed.ops.backends import CPU, PORTABLE, current
from heed.ops.checks import Operand, compute_type
from heed.ops.dispatch import AUTO, explain, get_implementation
from heed.ops.mask import Mask
from heed.ops.scores import AdditiveScore, DotScore
from heed.ops.spec import AttentionSpec

# From so many numbers on, memory counts more than time: in half precision they take 1 GiB, and training keeps several.
_MANY = 2**29


class Call(NamedTuple):
    """An attention of Keras.

    Attributes:
        query, key, value: (B, T, N, H) and so on, with None for unknown sizes.
        source: a tensor of the call, which tells the device.
        mask: what hides scores, or None.
        is_fused: whether Keras computes it by its op `dot_product_attention`; otherwise it builds the scores.
        returns_scores: whether the scores are a result.
        is_additive: whether it is additive attention.
        has_bias: whether there is a bias.
        scale, soft_cap: of the scores.
        dropout: the rate with which weights are dropped now.
    """

    query: Operand
    key: Operand
    value: Operand
    source: Any
    mask: Mask | None = None
    is_fused: bool = True
    returns_scores: bool = False
    is_additive: bool = False
    has_bias: bool = False
    scale: float = 1.0
    soft_cap: float | None = None
    dropout: float = 0.0

    def to_spec(self) -> AttentionSpec:
        """Return heed's description of it."""
        query, key, value = self.query, self.key, self.value
        if self.is_additive:  # which has no axis of heads
            query, key, value = (
                Operand((*x.shape[:2], x.shape[3]), x.dtype) for x in (query, key, value)
            )
        return AttentionSpec.of(
            query,
            key,
            value,
            "BTU" if self.is_additive else "BTNH",
            score=AdditiveScore() if self.is_additive else DotScore(self.scale, self.soft_cap),
            mask=self.mask,
            dtype=compute_type(self.query.dtype),
            has_bias=self.has_bias,
            has_slopes=False,
            dropout=self.dropout,
        )

    def count_numbers(self) -> int:
        """Return how many numbers Keras builds for the scores, with 1 for each unknown size."""
        batch, length, heads, width = self.query.shape
        sizes = (batch, length, heads, self.key.shape[1], width if self.is_additive else 1)
        return math.prod(1 if n is None else n for n in sizes)


def is_cpu() -> bool:
    """Whether everything is computed on the CPU, where all calls run on heed."""
    return current().device_of() == CPU


def reason_to_leave(call: Call | None) -> str | None:
    """Why Keras runs a call that heed could run, as part of a sentence; None if heed runs it."""
    # Who has chosen an implementation gets it.
    if call is None or get_implementation() != AUTO:
        return None
    backend = current()
    device = backend.device_of(call.source)
    if device == CPU:
        return None
    if call.returns_scores:
        return f"on a {device} Keras computes output and scores at once"
    kernel = None
    if call.is_fused:
        kernel = backend.keras_kernel(call.query, call.key, call.value, call.mask)
    if explain(call.to_spec()).implementation != PORTABLE:
        same = kernel is not None and not kernel.copies
        return f"on a {device} Keras runs the same kernel" if same else None
    if kernel is not None:
        return f"on a {device} Keras runs {kernel.name}, and heed has no fused kernel for the call"
    if call.count_numbers() < _MANY:
        return f"on a {device} heed has no fused kernel for the call, and its scores are few enough to build"
    return None
