"""A fused call of PyTorch as a function with two derivatives: the first ones are PyTorch's, the second portable."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from heed.ops.backends.torch.derivatives import rest_of
from heed.ops.backends.torch.fused import _compiling
from heed.ops.backends.torch.fused._nonfinite import ask, is_recording
from heed.ops.backends.torch.fused._protocol import Call, CannotRun, Results
from heed.ops.backends.torch.graph_breaks import in_python
from heed.ops.backends.torch.operands import require_grad
from heed.ops.backends.torch.portable import blockwise
from heed.ops.core.form import functions
from heed.ops.spec import AttentionSpec, Tensors


def attend(call: Call, spec: AttentionSpec, tensors: Tensors, return_lse: bool) -> Results:
    """Return the output in the layout of the spec, and the log-sum-exp if requested."""
    if torch.compiler.is_compiling():  # whose derivatives are those of the program
        if functions(spec):  # whose programs are no values that torch.compile knows
            return _attend_in_python(call, spec, tensors, return_lse)
        output, lse = call.compute(spec, tensors, spec.mask is not None)
    else:
        bare, operands = spec, tensors[:3]
        if spec.score.operands:
            bare = dataclasses.replace(spec, score=spec.score.with_operands(()))
            operands = *operands, *spec.score.operands
        if torch.is_grad_enabled() and require_grad(operands):
            output, lse = _Attention.apply(call, bare, tensors.slopes, *operands)
        else:
            trained = [False] * len(operands)
            output, lse = _run_safely(call, bare, tensors.slopes, operands, trained).results
    return output, lse if return_lse else None


_attend_in_python = in_python(attend, "functions of scores and masks")


class _Pass(NamedTuple):
    """A forward pass."""

    # query, key, value and the operands of the score, in those of which that have gradients the results are
    # differentiable
    leaves: list[torch.Tensor]
    results: Results  # of the call
    repaired: bool  # whether it was computed with repair


def _run(
    call: Call,
    spec: AttentionSpec,
    slopes: Any,
    operands: Sequence[torch.Tensor],
    repair: bool,
    trained: Sequence[bool],
) -> _Pass:
    leaves = [
        x.detach().requires_grad_(y) if y else x for x, y in zip(operands, trained, strict=True)
    ]
    spec, tensors = _whole(spec, slopes, leaves)
    with torch.set_grad_enabled(any(trained)):
        results = call.compute(spec, tensors, repair)
    return _Pass(leaves, results, repair)


def _whole(
    spec: AttentionSpec, slopes: Any, operands: Sequence[torch.Tensor]
) -> tuple[AttentionSpec, Tensors]:
    query, key, value, *others = operands
    if others:
        spec = dataclasses.replace(spec, score=spec.score.with_operands(tuple(others)))
    return spec, Tensors(query, key, value, slopes=slopes)


def _run_safely(
    call: Call,
    spec: AttentionSpec,
    slopes: Any,
    operands: Sequence[torch.Tensor],
    trained: Sequence[bool],
) -> _Pass:
    """Run a forward pass, with repair if a mask hides numbers and some are nonfinite, or nobody can know."""
    if spec.mask is None:
        return _run(call, spec, slopes, operands, False, trained)
    # A function may make nonfinite scores of finite numbers.
    if is_recording() or spec.score.program is not None:
        return _run(call, spec, slopes, operands, True, trained)
    wait = ask(operands, call.assumed(spec))
    found = _run(call, spec, slopes, operands, False, trained)
    answer = wait()
    if not answer.are_equal:
        call.forget(spec)
        return _run_safely(call, spec, slopes, operands, trained)
    return found if answer.are_finite else _run(call, spec, slopes, operands, True, trained)


def _gradients(
    leaves: Sequence[torch.Tensor], results: Results, incoming: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of the leaves; None for those without."""
    pairs = [
        (x, y) for x, y in zip(results, incoming, strict=True) if x is not None and y is not None
    ]
    wanted = [x for x in leaves if x.requires_grad]
    found = map(torch.zeros_like, wanted)
    if pairs:
        outputs, gradients = zip(*pairs, strict=True)
        found = iter(
            torch.autograd.grad(
                outputs, wanted, gradients, allow_unused=True, materialize_grads=True
            )
        )
    return tuple(next(found) if x.requires_grad else None for x in leaves)


def _first_gradients(
    ctx: Any,
    done: _Pass | None,
    slopes: Any,
    operands: Sequence[torch.Tensor],
    incoming: Sequence[torch.Tensor | None],
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of the operands, with repair if a mask hides numbers and some are nonfinite."""

    def run(repair: bool) -> _Pass:
        return _run(ctx.call, ctx.spec, slopes, operands, repair, ctx.wanted)

    may_need_repair = ctx.spec.mask is not None and not ctx.repaired
    if may_need_repair and is_recording():
        done = run(True)
        may_need_repair = False
    wait = ask(incoming) if may_need_repair else None
    done = run(ctx.repaired) if done is None else done
    found = _gradients(done.leaves, done.results, incoming)
    if wait is not None and not wait().are_finite:
        done = run(True)
        found = _gradients(done.leaves, done.results, incoming)
    return found


class _Attention(torch.autograd.Function):
    """Output and log-sum-exp. Its graph is kept for the first derivatives."""

    @staticmethod
    def forward(ctx: Any, call: Call, spec: AttentionSpec, slopes: Any, *operands: Any) -> Any:
        # Query, key and value have gradients together.
        ctx.wanted = [True] * 3 + list(ctx.needs_input_grad[6:])
        found = _run_safely(call, spec, slopes, operands, ctx.wanted)
        ctx.set_materialize_grads(False)
        ctx.call, ctx.spec, ctx.found, ctx.repaired = call, spec, found, found.repaired
        # Those of the mask only so that PyTorch refuses a backward pass after they changed in place.
        ctx.save_for_backward(slopes, *operands, *rest_of(spec))
        output, lse = found.results
        return output.detach(), None if lse is None else lse.detach()

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> Any:
        slopes, *operands = ctx.saved_tensors[: 1 + len(ctx.wanted)]
        if torch.is_grad_enabled():
            found = _Gradient.apply(ctx.call, ctx.spec, ctx.wanted, slopes, *incoming, *operands)
        else:
            # A compiled graph can be differentiated only once.
            done, ctx.found = ctx.found, None
            try:
                found = _first_gradients(ctx, done, slopes, operands, incoming)
            except _compiling.failures() as error:
                if not isinstance(error, CannotRun):
                    _compiling.note_failure(ctx.call, ctx.spec, error)
                every = blockwise.gradients(*_whole(ctx.spec, slopes, operands), incoming)
                found = *every[:3], *every[5:]
        return None, None, None, *found


class _Gradient(torch.autograd.Function):
    """The gradients of the operands: a function of them and of the incoming ones."""

    @staticmethod
    def forward(
        ctx: Any, call: Call, spec: AttentionSpec, wanted: Any, slopes: Any, *inputs: Any
    ) -> Any:
        ctx.spec = spec
        ctx.count = 1 + len(inputs)
        ctx.save_for_backward(slopes, *inputs, *rest_of(spec))
        incoming = [None if x is None else x.detach() for x in inputs[:2]]
        repair = spec.mask is not None and (
            is_recording() or spec.score.program is not None or not ask(inputs)().are_finite
        )
        found = _run(call, spec, slopes, inputs[2:], repair, wanted)
        return _gradients(found.leaves, found.results, incoming)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: Any) -> Any:
        slopes, *incoming = ctx.saved_tensors[:3]
        spec, tensors = _whole(ctx.spec, slopes, ctx.saved_tensors[3 : ctx.count])
        given = [*cotangents[:3], None, None, *cotangents[3:]]
        second = blockwise.second(spec, tensors, incoming, given)
        return *[None] * 4, *second[-2:], *second[:3], *second[5:-2]
