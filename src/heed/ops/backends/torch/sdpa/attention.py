"""`scaled_dot_product_attention` of PyTorch with heed's meaning of nonfinite numbers, differentiable twice.

Under a causal mask PyTorch's kernels multiply hidden values by 0, which leaves NaN. So they compute with finite
substitutes, and NaN is then written into each row that sees a nonfinite key or value, or holds a nonfinite query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from heed.ops.backends.torch.portable import blockwise
from heed.ops.spec import AttentionSpec, Tensors

# All but the one that builds the scores; cuDNN's is not in each version of PyTorch.
_KERNELS = [
    getattr(SDPBackend, name)
    for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")
    if hasattr(SDPBackend, name)
]


def attend(spec: AttentionSpec, query: Any, key: Any, value: Any) -> torch.Tensor:
    """The output in the layout of the spec.

    Raises:
        RuntimeError: if no kernel of PyTorch computes it in linear memory.
    """
    return _Attention.apply(spec, query, key, value)


class _Rows(NamedTuple):
    """A computed attention.

    Attributes:
        leaves: query, key and value with finite numbers, in which `output` is differentiable.
        output: in the layout of the spec.
        bad: which rows see a nonfinite number: booleans (B, N, T); None where arithmetic decides.
    """

    leaves: list[torch.Tensor]
    output: torch.Tensor
    bad: torch.Tensor | None


def _compute(spec: AttentionSpec, tensors: Sequence[torch.Tensor]) -> _Rows:
    leaves, bad = [x.detach() for x in tensors], None
    if spec.mask is not None:
        query, key, value = (_by_head(spec, _holds_nonfinite(x)) for x in leaves)
        bad = query | (torch.cumsum(key | value, -1) > 0)
        leaves = [torch.where(torch.isfinite(x), x, 0.0) for x in leaves]
    leaves = [x.requires_grad_() for x in leaves]
    with torch.enable_grad(), sdpa_kernel(_KERNELS):
        query, key, value = (_by_head(spec, x) for x in leaves)
        output = scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=spec.mask is not None,
            scale=spec.score.to_core().scale,
        )
        return _Rows(leaves, _by_head(spec, output), bad)


def _gradients(spec: AttentionSpec, rows: _Rows, incoming: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of query, key and value."""
    bad = rows.bad
    if bad is not None:
        bad = bad | _by_head(spec, _holds_nonfinite(incoming))
        incoming = _fill(spec, bad, incoming, 0.0)
    found = torch.autograd.grad(rows.output, rows.leaves, incoming, retain_graph=True)
    if bad is None:
        return list(found)
    # Key j is seen by the rows from j on.
    seen = torch.cumsum(bad.flip(-1), -1).flip(-1) > 0
    hit = (bad, seen, seen)
    return [_fill(spec, where, x, torch.nan) for where, x in zip(hit, found, strict=True)]


def _by_head(spec: AttentionSpec, x: torch.Tensor) -> torch.Tensor:
    """From the layout of the spec to (B, N, ...), and back."""
    return x.transpose(1, 2) if spec.layout == "BTNH" else x


def _holds_nonfinite(x: torch.Tensor) -> torch.Tensor:
    return ~torch.isfinite(x).all(-1)


def _fill(spec: AttentionSpec, where: torch.Tensor, x: torch.Tensor, number: float) -> torch.Tensor:
    """`x` with a number in the rows (B, N, T) where the condition holds."""
    return x.masked_fill(_by_head(spec, where)[..., None], number)


class _Attention(torch.autograd.Function):
    """The output. Its graph is kept for the first derivatives."""

    @staticmethod
    def forward(ctx: Any, spec: AttentionSpec, *tensors: Any) -> torch.Tensor:
        rows = _compute(spec, tensors)
        output = rows.output.detach()
        if any(ctx.needs_input_grad):
            ctx.spec, ctx.rows = spec, rows
            ctx.save_for_backward(*tensors)
        return output if rows.bad is None else _fill(spec, rows.bad, output, torch.nan)

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor) -> Any:
        if torch.is_grad_enabled():
            return None, *_Gradient.apply(ctx.spec, *ctx.saved_tensors, incoming)
        return None, *_gradients(ctx.spec, ctx.rows, incoming)


class _Gradient(torch.autograd.Function):
    """The gradients of query, key and value: a function of them and of the incoming one."""

    @staticmethod
    def forward(ctx: Any, spec: AttentionSpec, *inputs: Any) -> tuple[torch.Tensor, ...]:
        ctx.spec = spec
        ctx.save_for_backward(*inputs)
        return tuple(_gradients(spec, _compute(spec, inputs[:3]), inputs[3].detach()))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: Any) -> Any:
        *tensors, incoming = ctx.saved_tensors
        weights = [*cotangents, None, None]
        second = blockwise.second(ctx.spec, Tensors(*tensors), (incoming, None), weights)
        return None, *second[:3], second[5]
