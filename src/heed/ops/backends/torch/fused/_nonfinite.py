"""NaN and Inf in the operands of fused calls.

Kernels multiply hidden values by 0, which leaves NaN. So where there is one, they compute with finite substitutes, and
NaN is then written into each row that sees a nonfinite key or value, or holds a nonfinite query. Shapes are those of
the kernels: (B, N, T, H), (B, K, S, H).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch


def ask_finite(tensors: Iterable[torch.Tensor | None]) -> Callable[[], bool]:
    """Start to ask whether the tensors hold finite numbers alone; return a function that waits for the answer.

    A GPU goes on meanwhile with what it is given after this.
    """
    # One reading of each tensor, without a tensor of booleans.
    largest = [
        torch.linalg.vector_norm(x, math.inf).float()
        for x in tensors
        if x is not None and x.numel()
    ]
    if not largest:
        return lambda: True
    found = torch.isfinite(torch.stack(largest)).all()
    if not found.is_cuda:
        return lambda: bool(found)
    answer = torch.empty((), dtype=torch.bool, pin_memory=True)
    answer.copy_(found, non_blocking=True)
    here = torch.cuda.Event()
    here.record()

    def wait() -> bool:
        here.synchronize()
        return bool(answer)

    return wait


def is_recording() -> bool:
    """Return whether a GPU's work is recorded, so that nobody can wait for an answer."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def holds_nonfinite(x: torch.Tensor) -> torch.Tensor:
    """Return whether each vector along the last axis holds a nonfinite number."""
    return ~torch.isfinite(x).all(-1)


def finite(x: torch.Tensor) -> torch.Tensor:
    """Return `x` with 0 in place of nonfinite numbers."""
    return torch.where(torch.isfinite(x), x, 0.0)


def fill_rows(where: torch.Tensor, x: torch.Tensor, number: float) -> torch.Tensor:
    """Return `x` with a number in the vectors where the condition holds."""
    return torch.where(where[..., None], number, x)


class Substitutes(torch.autograd.Function):
    """Finite query, key and value; their gradients are those of the operands.

    The value's gradient is NaN where the key's is.
    """

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        return finite(query), finite(key), finite(value)

    @staticmethod
    def backward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        return query, key, fill_rows(torch.isnan(key).any(-1), value, torch.nan)


class Poisoned(torch.autograd.Function):
    """Query, key and value with NaN in whole queries and keys that hold, or whose value holds, a nonfinite number.

    Where a kernel reads no hidden key, arithmetic carries NaN to all features of the rows that see one, and back to the
    queries and keys. The value's gradient is NaN where the key's is: the kernel has weights of 0 in such rows.
    """

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        bad_keys = holds_nonfinite(key) | holds_nonfinite(value)
        return (
            fill_rows(holds_nonfinite(query), query, torch.nan),
            fill_rows(bad_keys, key, torch.nan),
            value.view_as(value),
        )

    @staticmethod
    def backward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        return query, key, fill_rows(torch.isnan(key).any(-1), value, torch.nan)


class RepairedRows(torch.autograd.Function):
    """Output and log-sum-exp with NaN in the rows where `bad` holds, and 0 where a row sees no key.

    In the backward pass, rows that are bad or receive a nonfinite number reach the kernel as a log-sum-exp whose
    gradient is NaN, which the kernel passes to the keys that they see, and to no others.
    """

    @staticmethod
    def forward(ctx: Any, output: Any, lse: Any, bad: Any) -> Any:
        empty = torch.isneginf(lse)
        ctx.save_for_backward(bad, empty)
        number = torch.where(bad, torch.nan, 0.0).to(output.dtype)
        return (
            torch.where((bad | empty)[..., None], number[..., None], output),
            torch.where(bad, torch.nan, lse),
        )

    @staticmethod
    def backward(ctx: Any, output: Any, lse: Any) -> Any:
        bad, empty = ctx.saved_tensors
        bad = (bad | holds_nonfinite(output) | ~torch.isfinite(lse)) & ~empty
        return (
            fill_rows(bad | empty, output, 0.0),
            torch.where(bad, torch.nan, torch.where(empty, 0.0, lse)),
            None,
        )


class CausalOperands(torch.autograd.Function):
    """Finite query, key and value under a causal mask that ends at the last key.

    Also returns zeros (B, N, T), whose gradient `CausalRows` makes 1 in rows that turn to NaN, and which rows see a
    nonfinite number.
    """

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        ctx.end, ctx.group = key.shape[2] - query.shape[2], query.shape[1] // key.shape[1]
        bad_keys = holds_nonfinite(key) | holds_nonfinite(value)
        seen = torch.cumsum(bad_keys, -1)[..., ctx.end :] > 0
        bad = holds_nonfinite(query) | seen.repeat_interleave(ctx.group, 1)
        ctx.mark_non_differentiable(bad)
        rows = torch.zeros_like(bad, dtype=torch.float32)
        return finite(query), finite(key), finite(value), rows, bad

    @staticmethod
    def backward(ctx: Any, query: Any, key: Any, value: Any, rows: Any, _: Any) -> Any:
        # Key j is seen by the rows from j - end on.
        later = torch.cumsum(rows.flip(-1), -1).flip(-1)
        first = later[..., :1].expand(*later.shape[:-1], ctx.end)
        hit = torch.cat([first, later], -1).unflatten(1, (-1, ctx.group)).sum(2) > 0
        return tuple(
            fill_rows(where, x, torch.nan)
            for where, x in ((rows > 0, query), (hit, key), (hit, value))
        )


class CausalRows(torch.autograd.Function):
    """The output with NaN in bad rows. In the backward pass, what these receive reaches no kernel."""

    @staticmethod
    def forward(ctx: Any, output: Any, rows: Any, bad: Any) -> Any:
        ctx.save_for_backward(bad)
        return fill_rows(bad, output, torch.nan)

    @staticmethod
    def backward(ctx: Any, incoming: Any) -> Any:
        (bad,) = ctx.saved_tensors
        bad = bad | holds_nonfinite(incoming)
        return fill_rows(bad, incoming, 0.0), bad.to(torch.float32), None
