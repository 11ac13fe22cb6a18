"""PyTorch: `heed.ops` against `torch.nn.functional.scaled_dot_product_attention`, in one process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.nn.functional import scaled_dot_product_attention

import heed
from benchmarks.peers import find_in
from benchmarks.results import Row
from benchmarks.suites import NARROW
from benchmarks.turns import alternate, ratio
from heed import Mask, ops

_CALL_MICROSECONDS = 15.0


def _normal(*shape: int, backward: bool = False) -> torch.Tensor:
    return torch.randn(shape).requires_grad_(backward)


def _heed(**options: Any) -> Callable[..., torch.Tensor]:
    """Heed in PyTorch's layout."""

    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        return ops.dot_product_attention(*tensors, layout="BNTH", **options)

    return attend


def _sdpa(**options: Any) -> Callable[..., torch.Tensor]:
    def attend(*tensors: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(*tensors, **options)

    return attend


def _run(attend: Callable[..., Any], tensors: list[torch.Tensor]) -> Callable[[], Any]:
    """Return a call, with the gradients of all tensors if they require them."""
    if not tensors[0].requires_grad:
        return lambda: attend(*tensors)
    upstream = torch.randn(tensors[0].shape)
    return lambda: torch.autograd.grad(attend(*tensors), tensors, upstream)


def measure(rounds: int) -> Iterator[Row]:
    """Yield the rows of times."""
    torch.manual_seed(0)
    narrow = heed.info()["instruction_set"] in NARROW

    def row(name: str, tensors: list[Any], ours: Any, theirs: Any, bar: float, avx2: float) -> Row:
        least = avx2 if narrow else bar
        return ratio(f"PyTorch: {name}", _run(ours, tensors), _run(theirs, tensors), least, rounds)

    for backward, causal, bar, avx2 in (
        (False, False, 1.2, 1.2),
        (False, True, 1.4, 1.5),
        (True, False, 1.35, 1.3),
        (True, True, 1.6, 1.6),
    ):
        x = [_normal(2, 8, 2048, 64, backward=backward) for _ in range(3)]
        name = f"{'causal ' * causal}fwd{'+bwd' * backward} (2, 8, 2048, 64)"
        yield row(name, x, _heed(is_causal=causal), _sdpa(is_causal=causal), bar, avx2)
    x = [_normal(64, 8, 32, 64) for _ in range(3)]
    yield row("fwd (64, 8, 32, 64)", x, _heed(), _sdpa(), 1.2, 1.2)
    x = [_normal(4, 8, n, 64) for n in (1, 2048, 2048)]
    yield row("decoding (4, 8, 1/2048, 64)", x, _heed(), _sdpa(), 1.1, 1.1)
    x = [_normal(1, 8, 16384, 64) for _ in range(3)]
    place = torch.arange(16384)
    distance = place[:, None] - place
    visible = (distance >= 0) & (distance < 256)
    del distance
    window = _heed(mask=Mask.window(255, 0))
    name = "causal window 256 fwd (1, 8, 16384, 64), its SDPA with a boolean mask"
    yield row(name, x, window, _sdpa(attn_mask=visible), 20.0, 20.0)
    x = [_normal(2, 8, 2048, 64) for _ in range(3)]
    half = torch.tensor([1024, 1024])
    visible = (torch.arange(2048) < half[:, None])[:, None, None]
    name = "padding to half fwd (2, 8, 2048, 64), its SDPA with a boolean mask"
    yield row(name, x, _heed(mask=Mask.lengths(half)), _sdpa(attn_mask=visible), 1.8, 1.8)


def measure_call(rounds: int) -> Iterator[Row]:
    """Yield the cost of one call beyond the core, which runs alone on the same memory."""
    for backward in (False, True):
        x = [_normal(1, 8, 1, 8, backward=backward) for _ in range(3)]
        alone, kept = _core_alone([t.detach() for t in x])
        ours, bare = alternate(functools.partial(_heed(), *x), alone, rounds=20 * rounds)
        del kept
        name = f"PyTorch: one call beyond the core{', of tensors with gradients' * backward}"
        more = ours - bare
        yield Row(name, more * 1e6, _CALL_MICROSECONDS, at_most=True, unit="µs", seconds=more)


def _core_alone(x: list[torch.Tensor]) -> tuple[Callable[[], Any], Any]:
    """Return a function that repeats the core's part of a call, and the results that it writes into."""
    library = find_in("load", "ops.core.library", "ops.backends.shared.core")()[0]
    forward, calls = library.heed_forward, []

    def note(*arguments: Any) -> Any:
        calls.append(arguments)
        return forward(*arguments)

    with mock.patch.object(library, "heed_forward", note):
        kept = _heed(return_lse=True)(*x)  # the log-sum-exp keeps all that the core writes
    (arguments,) = calls
    return lambda: forward(*arguments), (kept, x)
