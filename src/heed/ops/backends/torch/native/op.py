"""The native kernels as differentiable functions of PyTorch.

Eager calls use a `torch.autograd.Function`, which costs the least. Where PyTorch traces or transforms a call
(`torch.compile`, `torch.func`), the same functions are ops of `torch.library`, which it keeps whole. Second derivatives
come from the portable form.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from heed.ops.backends.torch.native import call
from heed.ops.backends.torch.portable.implementation import Portable
from heed.ops.mask import Mask
from heed.ops.mask_rules import put_together, take_apart
from heed.ops.spec import AdditiveScore, AttentionSpec, DotScore, Tensors

# Tensors with memory of their own.
PLAIN = (torch.Tensor, torch.nn.Parameter)
transforms_active = torch._C._are_functorch_transforms_active
OptionalTensor: TypeAlias = "torch.Tensor | None"


def run(
    spec: AttentionSpec, tensors: Tensors, return_lse: bool
) -> tuple[torch.Tensor, OptionalTensor]:
    """Output, and the log-sum-exp if requested; differentiable twice."""
    if torch.compiler.is_compiling() or type(tensors.query) not in PLAIN:
        return _run_op(spec, tensors, return_lse)
    if transforms_active() or (torch.is_grad_enabled() and _requires_grad(tensors)):
        rules = [] if spec.is_plain or spec.mask is None else take_apart(spec.mask.rules)[0]
        output, lse, _ = _apply(_Attention, spec, return_lse, *tensors, *rules)
        return output, lse
    output, statistics, plan = call.forward(spec, tensors)
    return output, call.lse_of(spec, plan, statistics) if return_lse else None


def _requires_grad(tensors: Tensors) -> bool:
    for x in tensors:  # noqa: SIM110  (a third of the time of `any`)
        if x is not None and x.requires_grad:
            return True
    return False


def _apply(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    """`function.apply`, without binding the inputs to names where no transformation needs it: that takes most time."""
    if transforms_active():
        return function.apply(*inputs)
    return super(torch.autograd.Function, function).apply(*inputs)


def _with_rules(spec: AttentionSpec, rules: Sequence[torch.Tensor]) -> AttentionSpec:
    """The spec with these tensors in its mask: `torch.func` passes other ones than those that it was called with."""
    if not rules or spec.mask is None:
        return spec
    outlines = take_apart(spec.mask.rules)[1]
    return dataclasses.replace(spec, mask=Mask(put_together(outlines, rules)))


class _Attention(torch.autograd.Function):
    """Output, log-sum-exp (or None) and the statistics that the backward pass needs."""

    @staticmethod
    def forward(spec: AttentionSpec, return_lse: bool, *inputs: Any) -> tuple[Any, ...]:
        spec = _with_rules(spec, inputs[7:])
        output, statistics, plan = call.forward(spec, Tensors(*inputs[:7]))
        lse = call.lse_of(spec, plan, statistics).clone() if return_lse else None
        return output, lse, statistics

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.spec = inputs[0]
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[2:], output[0], output[2])

    @staticmethod
    def backward(
        ctx: Any, output_gradient: OptionalTensor, lse_gradient: OptionalTensor, _: Any
    ) -> Any:
        *inputs, output, statistics = ctx.saved_tensors
        if output_gradient is None:
            output_gradient = torch.zeros_like(output)
        bias_wanted = ctx.needs_input_grad[2 + _BIAS]
        received = output.detach(), statistics, output_gradient, lse_gradient
        if torch.is_grad_enabled() or transforms_active():
            gradients = _apply(_Gradient, ctx.spec, bias_wanted, *received, *inputs)
        else:
            gradients = _gradients(ctx.spec, bias_wanted, *received, *inputs)
        return None, None, *_spread(gradients), *[None] * (len(inputs) - 7)


def _gradients(spec: AttentionSpec, bias_wanted: bool, *inputs: Any) -> list[OptionalTensor]:
    """Gradients of query, key, value, bias and score vector."""
    output, statistics, output_gradient, lse_gradient = inputs[:4]
    spec = _with_rules(spec, inputs[11:])
    operands = Tensors(*inputs[4:11])
    return call.backward(
        spec, operands, output, statistics, output_gradient, lse_gradient, bias_wanted
    )


class _Gradient(torch.autograd.Function):
    """Gradients of the operands: a function of them and of the incoming gradients."""

    @staticmethod
    def forward(spec: AttentionSpec, bias_wanted: bool, *inputs: Any) -> tuple[OptionalTensor, ...]:
        return tuple(_gradients(spec, bias_wanted, *inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.spec = inputs[0]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[4:])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        inputs = ctx.saved_tensors
        second = _apply(_Second, ctx.spec, *cotangents, *inputs)
        rest = [None] * (len(inputs) - 9)
        return *[None] * 4, *second[5:], *_spread(second[:5]), *rest


class _Second(torch.autograd.Function):
    """The second derivatives, which have none themselves."""

    @staticmethod
    def forward(spec: AttentionSpec, *inputs: Any) -> tuple[OptionalTensor, ...]:
        cotangents, incoming, operands = inputs[:5], inputs[5:7], Tensors(*inputs[7:14])
        spec = _with_rules(spec, inputs[14:])
        return tuple(second_derivatives(spec, operands, incoming, cotangents))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("heed's attention has two derivatives, not three")


# The places in `Tensors` of the operands that get gradients; that of the bias.
_TRAINED, _BIAS = (0, 1, 2, 3, 6), 3


def _spread(gradients: Sequence[Any]) -> list[Any]:
    """Gradients of query, key, value, bias and score vector, in their places among all seven operands."""
    return [*gradients[:4], None, None, gradients[4]]


def second_derivatives(
    spec: AttentionSpec,
    tensors: Tensors,
    incoming: Sequence[OptionalTensor],
    cotangents: Sequence[Any],
) -> list[OptionalTensor]:
    """Gradients of sum(cotangents * first derivatives), by the portable form.

    Args:
        spec, tensors: the attention.
        incoming: gradients of output and log-sum-exp; None for 0.
        cotangents: of the gradients of query, key, value, bias and score vector; None for 0.

    Returns: one for each of these operands and of `incoming`, None where that is None.
    """
    names = ("query", "key", "value", "bias", "score_vector")
    with torch.enable_grad():
        leaves = {
            name: x.detach().requires_grad_()
            for name in names
            if (x := getattr(tensors, name)) is not None
        }
        received = [None if x is None else x.detach().requires_grad_() for x in incoming]
        found = Portable().attend(spec, tensors._replace(**leaves), return_lse=True)
        pairs = [(x, y) for x, y in zip(found, received, strict=True) if y is not None]
        operands = list(leaves.values())
        first = torch.autograd.grad(
            [x for x, _ in pairs],
            operands,
            [y for _, y in pairs],
            create_graph=True,
            materialize_grads=True,
        )
        weights = [
            torch.zeros_like(x) if y is None else y
            for x, y in zip(first, (cotangents[names.index(name)] for name in leaves), strict=True)
        ]
        present = [x for x in (*operands, *received) if x is not None]
        second = iter(torch.autograd.grad(first, present, weights, materialize_grads=True))
    return [next(second) if name in leaves else None for name in names] + [
        None if x is None else next(second) for x in received
    ]


# Ops of torch.library


def _write(spec: AttentionSpec) -> tuple[str, list[torch.Tensor]]:
    """A spec without sizes as text, and the tensors of its mask."""
    rules, outlines = ([], ()) if spec.mask is None else take_apart(spec.mask.rules)
    score = tuple(spec.score)
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
        score=DotScore(*score) if score else AdditiveScore(),
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
        spec, tensors, output, statistics, output_gradient, lse_gradient, True
    )
    return [x for x in gradients if x is not None]


@_attention_gradient.register_fake
def _(form: str, query: Any, key: Any, value: Any, bias: Any, *others: Any) -> list[Any]:
    vector = others[2]
    return [torch.empty_like(x) for x in (query, key, value, bias, vector) if x is not None]


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
    whole = [None if tensors[place] is None else next(given) for place in _TRAINED]
    second = second_derivatives(spec, tensors, incoming, whole)
    return [x.clone() for x in second if x is not None]


@_attention_second_gradient.register_fake
def _(form: str, *arguments: Any) -> list[Any]:
    operands, (_, *incoming, _) = arguments[:7], arguments[7:]
    present = [operands[place] for place in _TRAINED if operands[place] is not None]
    return [torch.empty_like(x) for x in (*present, *incoming)]


def _complete(gradients: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """The gradients of the present operands, in their places among all seven."""
    given = iter(gradients)
    return _spread([None if operands[place] is None else next(given) for place in _TRAINED])


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
