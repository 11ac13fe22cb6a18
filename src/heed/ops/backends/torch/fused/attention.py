"""A fused call of PyTorch as a function with two derivatives: the first ones are PyTorch's, the second portable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import torch

from heed.ops.backends.torch.portable import blockwise
from heed.ops.spec import AttentionSpec, Tensors

Results: TypeAlias = "tuple[torch.Tensor, torch.Tensor | None]"


class CannotRun(RuntimeError):  # noqa: N818  (no error to users)
    """PyTorch has no fused kernel for this call after all."""


class Call(Protocol):
    """A fused call of PyTorch.

    Attributes:
        name: of the implementation.
        gives_lse: whether it computes the log-sum-exp, and its gradients.
    """

    name: str
    gives_lse: bool

    def machine_reasons(self) -> list[str]:
        """Return why it cannot run with this PyTorch, as sentences about the call."""

    def reasons_against(self, spec: AttentionSpec) -> list[str]:
        """Return why it does not give heed's result, as sentences about the call."""

    def compute(self, spec: AttentionSpec, tensors: Tensors) -> Results:
        """Return the output in the layout of the spec and the log-sum-exp, or None for that.

        PyTorch differentiates it once, and can compile it.
        """


def attend(call: Call, spec: AttentionSpec, tensors: Tensors, return_lse: bool) -> Results:
    """The output in the layout of the spec, and the log-sum-exp if requested."""
    if torch.compiler.is_compiling():  # whose derivatives are those of the program
        output, lse = call.compute(spec, tensors)
    else:
        output, lse = _Attention.apply(call, spec, tensors.slopes, *tensors[:3])
    return output, lse if return_lse else None


def _run(
    call: Call, spec: AttentionSpec, slopes: Any, operands: Sequence[torch.Tensor], trained: bool
) -> tuple[list[torch.Tensor], Results]:
    """Query, key and value as leaves of a graph, and the results that depend on them."""
    leaves = [x.detach().requires_grad_(trained) for x in operands]
    with torch.set_grad_enabled(trained):
        return leaves, call.compute(spec, Tensors(*leaves, slopes=slopes))


def _gradients(
    leaves: Sequence[torch.Tensor], results: Results, incoming: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor, ...]:
    """The gradients of query, key and value."""
    pairs = [
        (x, y) for x, y in zip(results, incoming, strict=True) if x is not None and y is not None
    ]
    if not pairs:
        return tuple(map(torch.zeros_like, leaves))
    outputs, gradients = zip(*pairs, strict=True)
    return torch.autograd.grad(outputs, leaves, gradients)


class _Attention(torch.autograd.Function):
    """Output and log-sum-exp. Its graph is kept for the first derivatives."""

    @staticmethod
    def forward(ctx: Any, call: Call, spec: AttentionSpec, slopes: Any, *operands: Any) -> Any:
        trained = any(ctx.needs_input_grad)
        leaves, results = _run(call, spec, slopes, operands, trained)
        ctx.set_materialize_grads(False)
        ctx.call, ctx.spec = call, spec
        if trained:
            ctx.rows = leaves, results
            ctx.save_for_backward(slopes, *operands)
        output, lse = results
        return output.detach(), None if lse is None else lse.detach()

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> Any:
        slopes, *operands = ctx.saved_tensors
        if torch.is_grad_enabled():
            found = _Gradient.apply(ctx.call, ctx.spec, slopes, *operands, *incoming)
        else:
            # A compiled graph can be differentiated only once.
            rows = ctx.rows or _run(ctx.call, ctx.spec, slopes, operands, True)
            ctx.rows = None
            found = _gradients(*rows, incoming)
        return None, None, None, *found


class _Gradient(torch.autograd.Function):
    """The gradients of query, key and value: a function of them and of the incoming ones."""

    @staticmethod
    def forward(ctx: Any, call: Call, spec: AttentionSpec, slopes: Any, *inputs: Any) -> Any:
        ctx.spec = spec
        ctx.save_for_backward(slopes, *inputs)
        incoming = [None if x is None else x.detach() for x in inputs[3:]]
        return _gradients(*_run(call, spec, slopes, inputs[:3], True), incoming)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: Any) -> Any:
        slopes, query, key, value, *incoming = ctx.saved_tensors
        tensors = Tensors(query, key, value, slopes=slopes)
        second = blockwise.second(ctx.spec, tensors, incoming, [*cotangents, None, None])
        return None, None, None, *second[:3], *second[5:]
