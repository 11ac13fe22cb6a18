"""The rule of the device: which calls of Keras run on heed where the computer is no CPU.

There a call runs on heed if heed has a fused kernel for it that does less than Keras does, or if Keras would build
scores that may not fit into memory. Keras runs the others as well or better: by a fused kernel of its own, or at once
where heed works in blocks.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from heed.keras_modules import get_mask
from heed.ops.backends import CPU, PORTABLE, current
from heed.ops.checks import Operand, compute_type
from heed.ops.dispatch import AUTO, explain, get_implementation
from heed.ops.mask import Mask
from heed.ops.scores import AdditiveScore, DotScore
from heed.ops.spec import AttentionSpec

# From so many numbers on, memory counts more than time: in half precision they take 1 GiB, and training keeps several.
_MANY = 2**29


class Call(NamedTuple):
    """An attention of Keras. Hashable, unless a mask holds tensors."""

    # `query`, `key`, `value`: (B, T, N, H) and so on, with None for unknown sizes
    query: Operand
    key: Operand
    value: Operand
    source: Any  # a tensor of the call, which tells the device
    mask: Mask | None = None  # what heed knows of the mask's structure, or None
    # the shape of an array that hides scores, too; (..., T, S) or (..., 1, S). None for no array.
    array: tuple[int | None, ...] | None = None
    # whether Keras computes it by its op `dot_product_attention`; otherwise it builds the scores
    is_fused: bool = True
    returns_scores: bool = False  # whether the scores are a result
    is_additive: bool = False  # whether it is additive attention
    has_bias: bool = False  # whether there is a bias
    score: DotScore = DotScore(1.0)  # of a dot product
    dropout: float = 0.0  # the rate with which weights are dropped now

    @property
    def has_mask_in_memory(self) -> bool:
        """Whether Keras makes or gets an array (T, S) for the mask."""
        return self.array is not None or self.mask not in (None, Mask.causal())

    @property
    def has_one_row(self) -> bool:
        """Whether the array of the mask is (..., 1, S)."""
        return self.mask is None and self.array is not None and self.array[-2:-1] in ((), (1,))

    def to_spec(self) -> AttentionSpec:
        """Return heed's description of it."""
        query, key, value = self.query, self.key, self.value
        if self.is_additive:  # which has no axis of heads
            query, key, value = (
                Operand((*x.shape[:2], x.shape[3]), x.dtype) for x in (query, key, value)
            )
        mask = self.mask
        if self.array is not None:
            mask = _any_array() if mask is None else mask & _any_array()
        return AttentionSpec.of(
            query,
            key,
            value,
            "BTU" if self.is_additive else "BTNH",
            score=AdditiveScore() if self.is_additive else self.score,
            mask=mask,
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


@functools.cache
def _any_array() -> Mask:
    """Return a stand-in for every array: implementations do not ask what it holds."""
    return Mask.dense(np.ones((1, 1, 1, 1), bool))


def reason_to_leave(call: Call | None) -> str | None:
    """Return why Keras runs a call that heed could run, as part of a sentence; None if heed runs it."""
    # Who has chosen an implementation gets it.
    if call is None or get_implementation() != AUTO:
        return None
    device = current().device_of(call.source)
    return None if device == CPU else _decide(call, device)


def is_asked() -> bool:
    """Return whether any call may be left here and now: not where everything is computed on the CPU."""
    return get_implementation() == AUTO and current().device_of() != CPU


class Reasons:
    """Why calls were left before. To leave one is always right: Keras computes it, if nobody was there.

    That heed runs a call is decided anew: PyTorch may fail to compile its kernel.
    """

    def __init__(self) -> None:
        self._by_kind: dict[Any, tuple[Callable[[], Any], str]] = {}

    def find(self, kind: Any, owner: Any) -> str | None:
        """Return the reason of a kind of call, or None."""
        found = self._by_kind.get(kind)
        return found[1] if found is not None and found[0]() is owner else None

    def keep(self, kind: Any, owner: Any, reason: str) -> None:
        """Keep the reason of a kind of call of an owner, a layer or None."""
        if len(self._by_kind) >= _MOST:
            self._by_kind.clear()
        self._by_kind[kind] = _nobody if owner is None else weakref.ref(owner), reason


def _nobody() -> None:
    return None


# How many reasons are kept at most.
_MOST = 4096


def kind_of(owner: Any, arguments: Iterable[Any]) -> Any:
    """Return what the rule asks of a call: sizes, dtypes, devices, options; None where each call must be looked at.

    Args:
        owner: the layer, or None.
        arguments: the others.
    """
    if current().hides_values():  # where sizes may be symbols, which nothing can hold
        return None
    found: list[Any] = [id(owner), _MANY]
    device = None
    for x in arguments:
        kind = type(x)
        if x is None or kind in _PLAIN:
            found.append(x)
        elif kind in (list, tuple):
            if (inner := kind_of(None, x)) is None:
                return None
            found.append(inner)
        elif hasattr(x, "shape") and hasattr(x, "dtype"):
            if device is None:  # of a call: that of its first tensor
                device = current().device_of(x)
            found += (kind, x.shape, x.dtype, get_mask(x) is None)
        else:
            return None
    return device, *found


_PLAIN = (bool, int, float, str)


def _decide(call: Call, device: str) -> str | None:
    if call.returns_scores:
        return f"on a {device} Keras computes output and scores at once"
    kernel = current().keras_kernel(call) if call.is_fused else None
    if kernel is not None and call.array is not None:
        return f"on a {device} {kernel.name} takes the array of the mask as Keras passes it"
    if explain(call.to_spec()).implementation != PORTABLE:
        same = kernel is not None and not kernel.copies
        return f"on a {device} Keras runs the same kernel" if same else None
    if kernel is not None:
        return f"on a {device} Keras runs {kernel.name}, and heed has no fused kernel for the call"
    if call.count_numbers() < _MANY:
        return f"on a {device} heed has no fused kernel for the call, and its scores are few enough to build"
    return None
