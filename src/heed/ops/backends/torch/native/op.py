"""The native kernels as differentiable functions of PyTorch.

Eager calls use `derivatives.attend`, which costs the least. Where PyTorch records a call (`torch.compile`,
`torch.jit.trace`, `make_fx`, fake tensors), the kernels are ops of `torch.library`, which it keeps whole.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from typing import Any

import torch

from heed.ops.backends.torch import derivatives
from heed.ops.backends.torch.derivatives import TRAINED, OptionalTensor, spread
from heed.ops.backends.torch.native import call
from heed.ops.backends.torch.operands import (
    have_memory,
    is_observed,
    is_transformed,
    legacy_vmap_level,
)
from heed.ops.backends.torch.portable import blockwise
from heed.ops.mask import Mask
from heed.ops.mask_rules import put_together, take_apart
from heed.ops.scores import CoreScore, from_core
from heed.ops.spec import AttentionSpec, Tensors


def run(
    spec: AttentionSpec, tensors: Tensors, return_lse: bool
) -> tuple[torch.Tensor, OptionalTensor]:
    """Output, and the log-sum-exp if requested; differentiable twice."""
    if torch.compiler.is_compiling():
        if _is_transformed_while_compiling():  # the op has no rules for `vmap` and forward mode
            return derivatives.attend(KERNEL, spec, tensors, return_lse)
        return _run_op(spec, tensors, return_lse)
    has_memory, observed = _have_memory(spec, tensors), is_observed()
    # A tangent would get lost in the op.
    if is_transformed() or (observed and legacy_vmap_level()):
        return derivatives.attend(KERNEL, spec, tensors, return_lse)
    if observed or not has_memory:
        return _run_op(spec, tensors, return_lse)
    if torch.is_grad_enabled() and _requires_grad(tensors):
        return derivatives.attend(KERNEL, spec, tensors, return_lse)
    output, statistics, plan = call.forward(spec, tensors)
    return output, call.lse_of(spec, plan, statistics) if return_lse else None


def _requires_grad(tensors: Tensors) -> bool:
    for x in tensors:  # noqa: SIM110  (a third of the time of `any`)
        if x is not None and x.requires_grad:
            return True
    return False


_is_transformed_while_compiling = torch.compiler.assume_constant_result(is_transformed)


def _have_memory(spec: AttentionSpec, tensors: Tensors) -> bool:
    """Whether the core can read all operands, those of the mask too.

    Raises:
        ValueError: if they are on several devices.
    """
    rules = [] if spec.mask is None or spec.is_plain else take_apart(spec.mask.rules)[0]
    if have_memory(tensors) and have_memory(rules):
        return True
    named = {name: x for name, x in tensors._asdict().items() if x is not None}
    named |= {"mask": x for x in rules if x.device != tensors.query.device}
    for name, x in named.items():
        if x.device != tensors.query.device:
            raise ValueError(
                f"`{name}` must be on the device of `query`. Received: {name}.device={x.device}, "
                f"query.device={tensors.query.device}"
            )
    return False


class _Kernel:
    """See `derivatives.Kernel`."""

    def forward(self, spec: AttentionSpec, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        # Recorded below a transformation, as in `torch.func.linearize`.
        if is_observed() or not have_memory(tensors):
            form, rules = _write(spec)
            return torch.ops.heed.attention(form, *tensors, rules)
        output, statistics, plan = call.forward(spec, tensors)
        return output, call.lse_of(spec, plan, statistics).clone(), statistics

    def backward(
        self,
        spec: AttentionSpec,
        tensors: Tensors,
        output: torch.Tensor,
        statistics: torch.Tensor,
        incoming: Sequence[OptionalTensor],
        bias_wanted: bool,
    ) -> list[OptionalTensor]:
        output_gradient, lse_gradient = incoming
        if output_gradient is None:
            output_gradient = torch.zeros_like(output)
        if is_observed() or not have_memory(tensors):
            return _gradients_by_op(spec, tensors, output, statistics, output_gradient, lse_gradient)
        return call.backward(
            spec, tensors, output, statistics, output_gradient, lse_gradient, bias_wanted
        )


KERNEL: Any = _Kernel()


# Ops of torch.library


def _write(spec: AttentionSpec) -> tuple[str, list[torch.Tensor]]:
    """A spec without sizes as text, and the tensors of its mask."""
    rules, outlines = ([], ()) if spec.mask is None else take_apart(spec.mask.rules)
    score = tuple(spec.score.to_core())
    fields = (spec.layout, score, outlines, spec.dropout, spec.dtype)
    return repr(fields), rules


@functools.lru_cache(maxsize=1024)
def _parse(form: str) -> tuple[Any, ...]:
    return ast.literal_eval(form)


def _read(form: str, tensors: Tensors, rules: Sequence[torch.Tensor]) -> AttentionSpec:
    """The inverse of `_write`, for tensors of any sizes."""
    layout, score, outlines, dropout, dtype = _parse(form)
    return AttentionSpec.of(
        *tensors[:3],
        layout,
        score=from_core(CoreScore(*score)),
        mask=Mask(put_together(outlines, rules)) if outlines else None,
        dtype=dtype,
        has_bias=tensors.bias is not None,
        has_slopes=tensors.slopes is not None,
        dropout=dropout,
    )


def _run_op(
    spec: AttentionSpec, tensors: Tensors, return_lse: bool
) -> tuple[torch.Tensor, OptionalTensor]:
    form, rules = _write(spec)
    output, lse, _ = torch.ops.heed.attention(form, *tensors, rules)
    return output, lse if return_lse else None


_OPERANDS = (
    "Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? slopes, Tensor? seed, Tensor? score_vector, "
    "Tensor[] rules"
)


@torch.library.custom_op(
    "heed::attention",
    mutates_args=(),
    schema=f"(str form, {_OPERANDS}) -> (Tensor, Tensor, Tensor)",
)
def _attention_op(form: str, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    *operands, rules = arguments
    tensors = Tensors(*operands)
    spec = _read(form, tensors, rules)
    if tensors.query.device.type != "cpu":
        raise NotImplementedError("heed's native kernels are for tensors on a CPU")
    output, statistics, plan = call.forward(spec, tensors)
    return output, call.lse_of(spec, plan, statistics).clone(), statistics


@_attention_op.register_fake
def _(form: str, query: Any, key: Any, value: Any, *others: Any) -> Any:
    layout, _, _, _, dtype = _parse(form)
    compute = torch.float64 if dtype == "float64" else torch.float32
    output = query.new_empty((*query.shape[:-1], value.shape[-1]))
    batch, rows, heads = query.shape[0], query.shape[1], query.shape[2]
    shape = {"BTNH": (batch, heads, rows), "BNTH": (batch, rows, heads), "BTU": (batch, rows)}
    lse = query.new_empty(shape[layout], dtype=compute)
    numbers = 3 * lse.numel()
    if layout == "BTU":  # with the scores, if they are kept
        numbers = torch.library.get_ctx().new_dynamic_size()
    return output, lse, query.new_empty((numbers,), dtype=compute)


def _dense(x: torch.Tensor) -> torch.Tensor:
    """A fake result like `x`. Not in its strides: when the op runs, it may get the operand in others."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op(
    "heed::attention_gradient",
    mutates_args=(),
    schema=(
        f"(str form, {_OPERANDS}, Tensor output, Tensor statistics, Tensor output_gradient, Tensor lse_gradient)"
        " -> Tensor[]"
    ),
)
def _attention_gradient(form: str, *arguments: Any) -> list[torch.Tensor]:
    operands, rest = arguments[:7], arguments[7:]
    rules, output, statistics, output_gradient, lse_gradient = rest
    tensors = Tensors(*operands)
    spec = _read(form, tensors, rules)
    gradients = call.backward(
        spec,
        tensors,
        output,
        statistics,
        output_gradient,
        lse_gradient,
        True,
        strides=torch.contiguous_format,
    )
    return [x for x in gradients if x is not None]


@_attention_gradient.register_fake
def _(form: str, query: Any, key: Any, value: Any, bias: Any, *others: Any) -> list[Any]:
    vector = others[2]
    return [_dense(x) for x in (query, key, value, bias, vector) if x is not None]


@torch.library.custom_op(
    "heed::attention_second_gradient",
    mutates_args=(),
    schema=f"(str form, {_OPERANDS}, Tensor output_gradient, Tensor lse_gradient, Tensor[] cotangents) -> Tensor[]",
)
def _attention_second_gradient(form: str, *arguments: Any) -> list[torch.Tensor]:
    operands, (rules, *incoming, cotangents) = arguments[:7], arguments[7:]
    tensors = Tensors(*operands)
    spec = _read(form, tensors, rules)
    given = iter(cotangents)
    whole = [None if tensors[place] is None else next(given) for place in TRAINED]
    second = blockwise.second(spec, tensors, incoming, whole)
    return [
        x.clone(memory_format=torch.contiguous_format) for x in second if x is not None
    ]


@_attention_second_gradient.register_fake
def _(form: str, *arguments: Any) -> list[Any]:
    operands, (_, *incoming, _) = arguments[:7], arguments[7:]
    present = [operands[place] for place in TRAINED if operands[place] is not None]
    return [_dense(x) for x in (*present, *incoming)]


def _complete(gradients: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """The gradients of the present operands, in their places among all seven."""
    given = iter(gradients)
    return spread([None if operands[place] is None else next(given) for place in TRAINED])


def _save_forward(ctx: Any, inputs: Any, output: Any) -> None:
    form, *operands, rules = inputs
    ctx.form, ctx.rules = form, len(rules)
    ctx.save_for_backward(*operands, *rules, output[0], output[2])


def _differentiate(ctx: Any, output_gradient: Any, lse_gradient: Any, _: Any) -> Any:
    saved = ctx.saved_tensors
    operands, rules, (output, statistics) = saved[:7], list(saved[7:-2]), saved[-2:]
    gradients = torch.ops.heed.attention_gradient(
        ctx.form, *operands, rules, output, statistics, output_gradient, lse_gradient
    )
    return None, *_complete(gradients, operands), [None] * len(rules)


def _gradients_by_op(
    spec: AttentionSpec,
    tensors: Tensors,
    output: torch.Tensor,
    statistics: torch.Tensor,
    output_gradient: torch.Tensor,
    lse_gradient: OptionalTensor,
) -> list[OptionalTensor]:
    form, rules = _write(spec)
    if lse_gradient is None:
        axis = spec.heads_axis
        shape = output.shape[:-1] if axis is None else (output.shape[0], spec.heads[0], spec.lengths[0])
        lse_gradient = statistics.new_zeros(shape)
    gradients = torch.ops.heed.attention_gradient(
        form, *tensors, rules, output, statistics, output_gradient, lse_gradient
    )
    complete = _complete(gradients, tensors)
    return [complete[place] for place in TRAINED]


def _save_gradient(ctx: Any, inputs: Any, output: Any) -> None:
    form, *operands, rules, _, _, output_gradient, lse_gradient = inputs
    ctx.form = form
    ctx.save_for_backward(*operands, *rules, output_gradient, lse_gradient)


def _differentiate_gradient(ctx: Any, cotangents: Any) -> Any:
    saved = ctx.saved_tensors
    operands, rules, incoming = saved[:7], list(saved[7:-2]), saved[-2:]
    second = torch.ops.heed.attention_second_gradient(
        ctx.form, *operands, rules, *incoming, list(cotangents)
    )
    return None, *_complete(second[:-2], operands), [None] * len(rules), None, None, *second[-2:]


_attention_op.register_autograd(_differentiate, setup_context=_save_forward)
_attention_gradient.register_autograd(_differentiate_gradient, setup_context=_save_gradient)
