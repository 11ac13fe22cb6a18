"""A fused call of PyTorch as a function with two derivatives: the first ones are PyTorch's, the second portable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from heed.ops.backends.torch.fused import _compiling
from heed.ops.backends.torch.fused._nonfinite import ask_finite, is_recording
from heed.ops.backends.torch.fused._protocol import Call, CannotRun, Results
from heed.ops.backends.torch.portable import blockwise
from heed.ops.spec import AttentionSpec, Tensors


def attend(call: Call, spec: AttentionSpec, tensors: Tensors, return_lse: bool) -> Results:
    """Return the output in the layout of the spec, and the log-sum-exp if requested."""
    if torch.compiler.is_compiling():  # whose derivatives are those of the program
        output, lse = call.compute(spec, tensors, spec.mask is not None)
    else:
        output, lse = _Attention.apply(call, spec, tensors.slopes, *tensors[:3])
    return output, lse if return_lse else None


class _Pass(NamedTuple):
    """A forward pass.

    Attributes:
        leaves: query, key and value, in which the results are differentiable.
        results: of the call.
        repaired: whether it was computed with repair.
    """

    leaves: list[torch.Tensor]
    results: Results
    repaired: bool


def _run(
    call: Call,
    spec: AttentionSpec,
    slopes: Any,
    operands: Sequence[torch.Tensor],
    repair: bool,
    trained: bool = True,
) -> _Pass:
    query, key, value = leaves = [x.detach().requires_grad_(trained) for x in operands]
    with torch.set_grad_enabled(trained):
        results = call.compute(spec, Tensors(query, key, value, slopes=slopes), repair)
    return _Pass(leaves, results, repair)


def _run_safely(
    call: Call, spec: AttentionSpec, slopes: Any, operands: Sequence[torch.Tensor], trained: bool
) -> _Pass:
    """Run a forward pass, with repair if a mask hides numbers and some are nonfinite, or nobody can know."""
    if spec.mask is None:
        return _run(call, spec, slopes, operands, False, trained)
    if is_recording():
        return _run(call, spec, slopes, operands, True, trained)
    are_finite = ask_finite(operands)
    found = _run(call, spec, slopes, operands, False, trained)
    return found if are_finite() else _run(call, spec, slopes, operands, True, trained)


def _gradients(
    leaves: Sequence[torch.Tensor], results: Results, incoming: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of query, key and value."""
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
        found = _run_safely(call, spec, slopes, operands, trained)
        ctx.set_materialize_grads(False)
        ctx.call, ctx.spec = call, spec
        if trained:
            ctx.found, ctx.repaired = found, found.repaired
            ctx.save_for_backward(slopes, *operands)
        output, lse = found.results
        return output.detach(), None if lse is None else lse.detach()

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> Any:
        slopes, *operands = ctx.saved_tensors
        if torch.is_grad_enabled():
            found = _Gradient.apply(ctx.call, ctx.spec, slopes, *operands, *incoming)
        else:
            repair = ctx.repaired or (
                ctx.spec.mask is not None and (is_recording() or not ask_finite(incoming)())
            )
            # A compiled graph can be differentiated only once.
            done, ctx.found = ctx.found, None
            try:
                if done is None or done.repaired != repair:
                    done = _run(ctx.call, ctx.spec, slopes, operands, repair)
                found = _gradients(done.leaves, done.results, incoming)
            except _compiling.failures() as error:
                if not isinstance(error, CannotRun):
                    _compiling.note_failure(ctx.call, ctx.spec, error)
                query, key, value = operands
                tensors = Tensors(query, key, value, slopes=slopes)
                found = blockwise.gradients(ctx.spec, tensors, incoming)[:3]
        return None, None, None, *found


class _Gradient(torch.autograd.Function):
    """The gradients of query, key and value: a function of them and of the incoming ones."""

    @staticmethod
    def forward(ctx: Any, call: Call, spec: AttentionSpec, slopes: Any, *inputs: Any) -> Any:
        ctx.spec = spec
        ctx.save_for_backward(slopes, *inputs)
        incoming = [None if x is None else x.detach() for x in inputs[3:]]
        repair = spec.mask is not None and not ask_finite(inputs)()
        found = _run(call, spec, slopes, inputs[:3], repair)
        return _gradients(found.leaves, found.results, incoming)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: Any) -> Any:
        slopes, query, key, value, *incoming = ctx.saved_tensors
        tensors = Tensors(query, key, value, slopes=slopes)
        second = blockwise.second(ctx.spec, tensors, incoming, [*cotangents, None, None])
        return None, None, None, *second[:3], *second[5:]
