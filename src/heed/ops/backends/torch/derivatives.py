"""An attention as a function that PyTorch differentiates and maps: reverse and forward mode, `torch.func`, `vmap`.

One set of `torch.autograd.Function` serves all implementations: each gives a `Kernel`. Derivatives of the gradient, and
tangents, come from the portable form.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Protocol, TypeAlias

import torch

from heed.ops.backends.protocol import OutputAndLse
from heed.ops.backends.torch.graph_breaks import in_python, may_be_compiled
from heed.ops.backends.torch.operands import (
    are_transforms_active,
    is_observed,
    is_transformed,
    legacy_vmap_level,
)
from heed.ops.backends.torch.portable import blockwise
from heed.ops.mask import Mask
from heed.ops.mask_rules import put_together, take_apart
from heed.ops.spec import AttentionSpec, Tensors

OptionalTensor: TypeAlias = "torch.Tensor | None"
# The places in `Tensors` of the operands that get gradients.
TRAINED = (0, 1, 2, 3, 6)
_of_trained = operator.itemgetter(*TRAINED)
_OPERANDS = len(Tensors._fields)


class Kernel(Protocol):
    """Computes an attention and its gradients, of tensors that nothing transforms."""

    def forward(
        self, spec: AttentionSpec, tensors: Tensors, return_lse: bool
    ) -> tuple[torch.Tensor, OptionalTensor, torch.Tensor]:
        """Return output, log-sum-exp, and a vector for `backward`: numbers for each of B, N and T.

        The log-sum-exp may be a part of the vector, or None where it is not requested.
        """

    def backward(
        self,
        spec: AttentionSpec,
        tensors: Tensors,
        output: Any,
        statistics: Any,
        incoming: Sequence[OptionalTensor],
        wanted: Sequence[bool],
    ) -> list[OptionalTensor]:
        """Return the gradients of query, key, value, bias, score vector and the score's operands, from the results'.

        Those that are not wanted may be missing.
        """


def _attend(
    kernel: Kernel, spec: AttentionSpec, tensors: Tensors, return_lse: bool
) -> OutputAndLse:
    """Return the output, and the log-sum-exp if requested. `torch.compile` leaves the call to Python."""
    output, lse, _ = _apply(_Attention, spec, kernel, return_lse, *tensors, *rest_of(spec))
    return output, lse


attend = in_python(_attend, "this call")


def attend_unobserved(
    kernel: Any, spec: AttentionSpec, tensors: Tensors, return_lse: bool
) -> OutputAndLse:
    """Do as `attend`, quicker, where nothing records or transforms the call and all tensors have memory.

    `kernel.forward_unobserved` does as `Kernel.forward` there.
    """
    if may_be_compiled():
        return attend(kernel, spec, tensors, return_lse)
    return _record((spec, tensors), kernel, return_lse, *tensors, *rest_of(spec))


def rest_of(spec: AttentionSpec) -> Sequence[torch.Tensor]:
    """Return the tensors of the mask, then the operands of the score."""
    if spec.is_plain:
        return ()
    rules = [] if spec.mask is None else take_apart(spec.mask.rules)[0]
    return (*rules, *spec.score.operands)


def _apply(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    """Call `function.apply`; bind the inputs to names, which takes most time, only for transformations."""
    if is_observed():
        if are_transforms_active():
            return function.apply(*inputs)
        for level in range(legacy_vmap_level(), 0, -1):
            full = [_remove_legacy_axis(x, level) for x in inputs]
            mapped = [x is not y for x, y in zip(full, inputs, strict=True)]
            if any(mapped):
                return _apply_to_legacy(function, level, full, mapped)
    return super(torch.autograd.Function, function).apply(*inputs)


def _remove_legacy_axis(x: Any, level: int) -> Any:
    """Return the tensor with the mapped axis of this level in front; `x` itself if it has none."""
    if not isinstance(x, torch.Tensor):
        return x
    full = torch._remove_batch_dim(x, level, 0, 0)
    return full if full.shape[0] else x  # a tensor without the axis gets one of this length, 0


def _apply_to_legacy(
    function: Any, level: int, inputs: Sequence[Any], mapped: Sequence[bool]
) -> Any:
    counts = {x.shape[0] for x, is_mapped in zip(inputs, mapped, strict=True) if is_mapped}
    info = SimpleNamespace(batch_size=counts.pop())
    dims = tuple(0 if is_mapped else None for is_mapped in mapped)
    found, _ = function.vmap(info, dims, *inputs)
    return tuple(None if x is None else torch._add_batch_dim(x, 0, level) for x in found)


def _with_rest(spec: AttentionSpec, rest: Sequence[torch.Tensor]) -> AttentionSpec:
    """Return the spec with these tensors in its mask and score: `torch.func` passes other ones than the call."""
    if not rest:
        return spec
    rules, others = _split_rest(spec, rest)
    score = spec.score.with_operands(tuple(others)) if others else spec.score
    mask = spec.mask
    if mask is not None and rules:
        mask = Mask(put_together(take_apart(mask.rules)[1], rules))
    return dataclasses.replace(spec, mask=mask, score=score)


def _split_rest(spec: AttentionSpec, rest: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return what comes after the operands as what belongs to the mask, and to the score."""
    rules = len(rest) - len(spec.score.operands)
    return rest[:rules], rest[rules:]


def _number_trained(spec: AttentionSpec) -> int:
    """Return how many operands get gradients: five, and those of the score."""
    return len(TRAINED) + len(spec.score.operands)


def _in_places(gradients: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Return the gradients of the trained operands in their places among all operands, the mask's, and the score's."""
    query, key, value, bias, score_vector, *others = gradients
    rules = len(inputs) - _OPERANDS - len(others)
    return [query, key, value, bias, None, None, score_vector, *[None] * rules, *others]


def _alive(saved: Sequence[Any]) -> Sequence[Any]:
    """Return saved tensors without the wrappers of transformations that have ended, as after `torch.func.vjp`."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    for x in saved:
        if x is not None and wrapped(x):
            unwrap = torch._C._functorch.unwrap_if_dead
            return [None if x is None else unwrap(x) for x in saved]
    return saved


def _trained(spec: AttentionSpec, tangents: Sequence[Any]) -> list[Any]:
    """Return those of the trained operands, of one for each operand, tensor of the mask and operand of the score."""
    return [*_of_trained(tangents), *_split_rest(spec, tangents[_OPERANDS:])[1]]


class _Attention(torch.autograd.Function):
    """Output, log-sum-exp (or None) and the statistics that the backward pass needs."""

    @staticmethod
    def forward(spec: AttentionSpec, kernel: Kernel, return_lse: bool, *inputs: Any) -> Any:
        spec = _with_rest(spec, inputs[_OPERANDS:])
        operands = Tensors(*inputs[:_OPERANDS])
        output, lse, statistics = kernel.forward(spec, operands, return_lse)
        # PyTorch differentiates no result that shares its memory with another.
        return output, lse.clone() if return_lse and lse is not None else None, statistics

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.spec, ctx.kernel, ctx.return_lse = inputs[:3]
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[3:], output[0], output[2])
        if is_transformed():
            ctx.save_for_forward(*inputs[3:])

    @staticmethod
    def backward(ctx: Any, output_gradient: Any, lse_gradient: Any, _: Any) -> Any:
        *inputs, output, statistics = _alive(ctx.saved_tensors)
        wanted = _trained(ctx.spec, ctx.needs_input_grad[3:])
        received = statistics, output_gradient, lse_gradient
        arguments = ctx.spec, ctx.kernel, wanted
        if torch.is_grad_enabled() or is_transformed() or is_observed():
            found = _apply(_Gradient, *arguments, output.detach(), *received, *inputs)
        else:
            found = _Gradient.forward(*arguments, output, *received, *inputs)
        return None, None, None, *_in_places(found, inputs)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        output, lse = _apply(
            _Tangent, ctx.spec, *_trained(ctx.spec, tangents[3:]), *ctx.saved_tensors
        )
        return output, lse if ctx.return_lse else None, None

    @staticmethod
    def vmap(info: Any, dims: Any, *inputs: Any) -> Any:
        return _map(_Attention, 3, "", "rrs", info.batch_size, dims, inputs)


class _Unobserved(torch.autograd.Function):
    """`_Attention` without what transformations need: statistics are no result.

    `call` holds the spec and the tensors, which are inputs only for their gradients.
    """

    @staticmethod
    def forward(ctx: Any, call: Any, kernel: Any, return_lse: bool, *inputs: Any) -> Any:
        spec, tensors = call
        output, lse, statistics = kernel.forward_unobserved(spec, tensors, return_lse)
        ctx.spec, ctx.kernel = spec, kernel
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, output, statistics)
        return output, lse if lse is None else lse.clone()  # of the statistics' memory

    @staticmethod
    def backward(ctx: Any, output_gradient: Any, lse_gradient: Any) -> Any:
        return _Attention.backward(ctx, output_gradient, lse_gradient, None)


_record = super(torch.autograd.Function, _Unobserved).apply  # see `_apply`


class _Gradient(torch.autograd.Function):
    """Gradients of the operands: a function of them and of the incoming gradients."""

    @staticmethod
    def forward(spec: AttentionSpec, kernel: Kernel, wanted: list[bool], *inputs: Any) -> Any:
        output, statistics, *incoming = inputs[:4]
        spec = _with_rest(spec, inputs[4 + _OPERANDS :])
        operands = Tensors(*inputs[4 : 4 + _OPERANDS])
        return tuple(kernel.backward(spec, operands, output, statistics, incoming, wanted))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.spec, ctx.kernel, ctx.wanted = inputs[:3]
        ctx.present = [x is not None for x in output]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[5:])
        if is_transformed():
            ctx.save_for_forward(*inputs[3:])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        inputs = _alive(ctx.saved_tensors)
        second = _apply(_Second, ctx.spec, *cotangents, *inputs)
        return *[None] * 5, *second[-2:], *_in_places(second[:-2], inputs[2:])

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        # Output and statistics are functions of the operands, whose derivatives are complete.
        output, statistics, *inputs = ctx.saved_tensors
        of_incoming, of_operands = tangents[5:7], _trained(ctx.spec, tangents[7:])
        # Second derivatives are symmetric.
        found = _apply(_Second, ctx.spec, *of_operands, *inputs)[:-2]
        if any(x is not None for x in of_incoming):
            received = output, statistics, *of_incoming
            more = _apply(_Gradient, ctx.spec, ctx.kernel, ctx.wanted, *received, *inputs[2:])
            found = [x if y is None else x + y for x, y in zip(found, more, strict=True)]
        return tuple(x if y else None for x, y in zip(found, ctx.present, strict=True))

    @staticmethod
    def vmap(info: Any, dims: Any, *inputs: Any) -> Any:
        return _map(_Gradient, 3, "rsrr", "rrrbv", info.batch_size, dims, inputs)


class _Second(torch.autograd.Function):
    """The second derivatives, which have none themselves. See `blockwise.second`."""

    @staticmethod
    def forward(spec: AttentionSpec, *inputs: Any) -> Any:
        count = _number_trained(spec)
        cotangents, incoming = inputs[:count], inputs[count : count + 2]
        inputs = inputs[count + 2 :]
        operands, spec = Tensors(*inputs[:_OPERANDS]), _with_rest(spec, inputs[_OPERANDS:])
        return tuple(blockwise.second(spec, operands, incoming, cotangents))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(_NO_THIRD)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(_NO_THIRD)

    @staticmethod
    def vmap(info: Any, dims: Any, *inputs: Any) -> Any:
        return _map(_Second, 1, "rrrbvrr", "rrrbvrr", info.batch_size, dims, inputs)


class _Tangent(torch.autograd.Function):
    """The tangents of output and log-sum-exp, from those of the operands that get gradients."""

    @staticmethod
    def forward(spec: AttentionSpec, *inputs: Any) -> Any:
        count = _number_trained(spec)
        tangents, inputs = inputs[:count], inputs[count:]
        operands, spec = Tensors(*inputs[:_OPERANDS]), _with_rest(spec, inputs[_OPERANDS:])
        return tuple(blockwise.tangent(spec, operands, tangents))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.spec = inputs[0]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        saved = _alive(ctx.saved_tensors)
        count = _number_trained(ctx.spec)
        tangents, operands = saved[:count], saved[count:]
        second = _apply(_Second, ctx.spec, *tangents, *cotangents, *operands)[:-2]
        received = None, None, *cotangents
        of_tangents = _apply(
            _Gradient, ctx.spec, blockwise.KERNEL, [True] * count, *received, *operands
        )
        present = [None if x is None else y for x, y in zip(tangents, of_tangents, strict=True)]
        return None, *present, *_in_places(second, operands)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(
            "heed's attention has no forward mode over forward mode: combine forward and reverse mode, as "
            "`torch.func.hessian` does, or apply reverse mode twice"
        )

    @staticmethod
    def vmap(info: Any, dims: Any, *inputs: Any) -> Any:
        return _map(_Tangent, 1, "rrrbv", "rr", info.batch_size, dims, inputs)


_NO_THIRD = "heed's attention has two derivatives, not three"


def _map(
    function: type[torch.autograd.Function],
    constants: int,
    others: str,
    results: str,
    count: int,
    dims: Sequence[int | None],
    inputs: Sequence[Any],
) -> tuple[Any, Any]:
    """Return a rule for `vmap`: the mapped axis becomes part of the batch.

    Additive attention, dropout, scores with operands, and slopes that differ between entries are mapped one entry at a
    time: their numbers belong to a whole batch.

    Args:
        function: what is mapped.
        constants: how many inputs are none of tensors, the spec first.
        others: the kinds of the tensors between these and the operands: (r) rows of a batch, (b) a bias, (v) a vector
            of additive attention, (s) statistics.
        results: the kinds of the results.
        count: M, the length of the mapped axis.
        dims: where each input has that axis; None for those that all entries share.
        inputs: of the function.
    """
    first, spec = constants + len(others), inputs[0]
    if spec.score.operands:
        return _one_by_one(function, count, dims, inputs)
    operands = Tensors(*inputs[first : first + _OPERANDS])
    bias_at = first + Tensors._fields.index("bias")
    of_batch = operands.score_vector is not None or dims[first + Tensors._fields.index("slopes")]
    if spec.dropout or of_batch not in (False, None):
        return _one_by_one(function, count, dims, inputs)
    batch, bias = spec.batch, operands.bias
    numbers = batch * spec.heads[0] * spec.lengths[0]
    bias_rows = 1
    if bias is not None:
        bias_rows = (
            bias.movedim(dims[bias_at], 0).shape[1] if dims[bias_at] is not None else bias.shape[0]
        )

    def join(x: Any, dim: int | None, kind: str) -> Any:
        """Return (M * B, ...)."""
        if x is None:
            return None
        x = x.expand(count, *x.shape) if dim is None else x.movedim(dim, 0)
        if kind == "s":  # the numbers of all entries side by side
            return (
                x.reshape(count, -1, numbers).transpose(0, 1).flatten() if numbers else x.flatten()
            )
        if x.shape[1] != batch:
            x = x.expand(count, batch, *x.shape[2:])
        return x.reshape(count * batch, *x.shape[2:])

    def split(x: Any, kind: str) -> Any:
        """Return the inverse."""
        if x is None:
            return None
        if kind == "s":
            return (
                x.reshape(-1, count, numbers).transpose(0, 1).flatten(1)
                if numbers and count
                else x.reshape(count, 0)
            )
        x = x.reshape(count, batch, *x.shape[1:])
        return x if kind != "b" or bias_rows == batch else x.sum(1, keepdim=True)

    joined = [
        join(x, dim, kind)
        for x, dim, kind in zip(inputs[constants:first], dims[constants:], others, strict=False)
    ]
    kinds = "rrrb"
    bias_is_shared = dims[bias_at] is None and bias_rows == 1 and "b" not in others + results
    joined += [
        x if kind == "b" and bias_is_shared else join(x, dim, kind)
        for x, dim, kind in zip(operands, dims[first:], kinds, strict=False)
    ]
    joined += operands[len(kinds) :]
    rules = zip(inputs[first + _OPERANDS :], dims[first + _OPERANDS :], strict=True)
    joined += [_join_rule(x, dim, count, batch) for x, dim in rules]
    spec = dataclasses.replace(spec, batch=count * batch)
    found = _apply(function, spec, *inputs[1:constants], *joined)
    outputs = tuple(split(x, kind) for x, kind in zip(found, results, strict=True))
    return outputs, tuple(None if x is None else 0 for x in outputs)


def _join_rule(x: torch.Tensor, dim: int | None, count: int, batch: int) -> torch.Tensor:
    """Return a tensor of a mask for all entries; unchanged where one row serves them all."""
    if dim is not None:
        x = x.movedim(dim, 0)
    shape = x.shape if dim is None else x.shape[1:]
    if x.dtype == torch.bool:  # dense: leading axes of length 1 may be missing
        shape = (1,) * (4 - len(shape)) + tuple(shape)
    elif not shape:
        shape = (1,)
        if dim is None:
            return x
    if dim is None and shape[0] == 1:
        return x
    x = x.reshape(count if dim is not None else 1, *shape)
    return x.expand(count, batch, *shape[1:]).reshape(count * batch, *shape[1:])


def _one_by_one(
    function: type[torch.autograd.Function],
    count: int,
    dims: Sequence[int | None],
    inputs: Sequence[Any],
) -> tuple[Any, Any]:
    def entry(index: int) -> Iterator[Any]:
        for x, dim in zip(inputs, dims, strict=True):
            # A list has a dim for each entry.
            mapped = dim is not None and isinstance(x, torch.Tensor)
            yield x if not mapped else x.select(dim, index) if count else x.sum(dim)

    found = [_apply(function, *entry(index)) for index in range(max(1, count))]
    outputs = tuple(
        None if parts[0] is None else torch.stack(parts)[:count]
        for parts in zip(*found, strict=True)
    )
    return outputs, tuple(None if x is None else 0 for x in outputs)
