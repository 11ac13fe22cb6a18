"""NaN and Inf in the operands of fused calls.

Kernels multiply hidden values by 0, which leaves NaN. So where there is one, they compute with finite substitutes, and
NaN is then written into each row that sees a nonfinite key or value, or holds a nonfinite query. Shapes are those of
the kernels: (B, N, T, H), (B, K, S, H).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from heed.ops.backends.torch.device import has_cuda

Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]


class Answer(NamedTuple):
    """What is known of tensors."""

    are_finite: bool  # whether they hold finite numbers alone
    are_equal: bool  # whether those of each pair are equal


def ask(tensors: Iterable[torch.Tensor | None], pairs: Pairs = ()) -> Callable[[], Answer]:
    """Start to ask whether tensors are finite, and those of pairs equal; return a function that waits for the answer.

    A GPU goes on meanwhile with what it is given after this.
    """
    read = [x for x in tensors if x is not None and x.numel()]
    # One reading of each tensor, without a tensor of booleans.
    numbers = [*torch._foreach_norm(read, math.inf)] if read else []
    if any(x.dtype != numbers[0].dtype for x in numbers):
        numbers = [x.float() for x in numbers]
    numbers += [(x != y).any().to(numbers[0].dtype) for x, y in pairs]
    if not numbers:
        return lambda: Answer(True, True)
    found = torch.stack(numbers)
    here = None
    if found.is_cuda:
        stream = torch.cuda.current_stream(found.device)  # of that device, not of the current one
        answer = torch.empty_like(found, device="cpu", pin_memory=True)
        found = answer.copy_(found, non_blocking=True)
        here = torch.cuda.Event()
        here.record(stream)

    def wait() -> Answer:
        if here is not None:
            here.synchronize()
        known = found.tolist()
        count = len(read)
        return Answer(all(map(math.isfinite, known[:count])), not any(known[count:]))

    return wait


def is_recording() -> bool:
    """Return whether a GPU's work is recorded, so that nobody can wait for an answer."""
    return has_cuda() and torch.cuda.is_current_stream_capturing()


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


class Reach(NamedTuple):
    """Which keys each query sees, and by which queries each key is seen: from the first one to the end."""

    # `first_key`, `end_key`: (B or 1, T)
    first_key: torch.Tensor
    end_key: torch.Tensor
    # `first_query`, `end_query`: (B or 1, S)
    first_query: torch.Tensor
    end_query: torch.Tensor


def _any_between(x: torch.Tensor, first: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Return (B, N, n), whether some of (B, N, m) holds from `first` (B or 1, n) to `end`."""
    counts = torch.nn.functional.pad(torch.cumsum(x, -1), (1, 0))
    before, until = (
        counts.gather(-1, place[:, None].expand(*x.shape[:2], -1)) for place in (first, end)
    )
    return until > before  # not where the end is before the first


def substitute(
    operands: Sequence[torch.Tensor], reach: Reach
) -> tuple[Sequence[torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]:
    """Return finite query, key and value, and what writes NaN into the rows of their attention that see another."""
    *found, rows, bad = _SeenOperands.apply(*operands, *reach)
    sees = (reach.end_key > reach.first_key)[:, None]
    return found, lambda output: _SeenRows.apply(output, rows, bad, sees)


class _SeenOperands(torch.autograd.Function):
    """Finite query, key and value under a mask that shows each query one range of keys.

    Also returns zeros (B, N, T), whose gradient `_SeenRows` makes 1 in rows that turn to NaN, and which rows do: they
    see a nonfinite number, or hold one and see a key.
    """

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, *reach: Any) -> Any:
        ctx.save_for_backward(*reach)
        ctx.group = query.shape[1] // key.shape[1]
        first, end = Reach(*reach)[:2]
        bad_keys = holds_nonfinite(key) | holds_nonfinite(value)
        seen = _any_between(bad_keys, first, end).repeat_interleave(ctx.group, 1)
        bad = seen | (holds_nonfinite(query) & (end > first)[:, None])
        ctx.mark_non_differentiable(bad)
        rows = torch.zeros_like(bad, dtype=torch.float32)
        return finite(query), finite(key), finite(value), rows, bad

    @staticmethod
    def backward(ctx: Any, query: Any, key: Any, value: Any, rows: Any, _: Any) -> Any:
        first, end = Reach(*ctx.saved_tensors)[2:]
        bad = rows > 0
        hit = _any_between(bad, first, end).unflatten(1, (-1, ctx.group)).any(2)
        found = (
            fill_rows(where, x, torch.nan) for where, x in ((bad, query), (hit, key), (hit, value))
        )
        return *found, None, None, None, None


class _SeenRows(torch.autograd.Function):
    """The output with NaN in bad rows. In the backward pass, what these receive reaches no kernel."""

    @staticmethod
    def forward(ctx: Any, output: Any, rows: Any, bad: Any, sees: Any) -> Any:
        ctx.save_for_backward(bad, sees)
        return fill_rows(bad, output, torch.nan)

    @staticmethod
    def backward(ctx: Any, incoming: Any) -> Any:
        bad, sees = ctx.saved_tensors
        bad = bad | (holds_nonfinite(incoming) & sees)
        return fill_rows(bad | ~sees, incoming, 0.0), bad.to(torch.float32), None, None
