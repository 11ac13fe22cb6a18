"""The native kernels as differentiable functions of PyTorch.

Eager calls use a `torch.autograd.Function`, which costs the least. Where PyTorch traces or transforms a call
(`torch.compile`, `torch.func`), the same functions are ops of `torch.library`, which it keeps whole. Second derivatives
come from the portable form.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from typing import Any

import torch

from heed.ops.backends.torch.native import call
from heed.ops.backends.torch.portable.implementation import Portable
from heed.ops.mask import Mask
from heed.ops.mask_rules import put_together, take_apart
from heed.ops.spec import AdditiveScore, AttentionSpec, DotScore, Tensors

_PLAIN = (torch.Tensor, torch.nn.Parameter)
Optional = torch.Tensor | None


def run(spec: AttentionSpec, tensors: Tensors, return_lse: bool) -> tuple[torch.Tensor, Optional]:
    """Output, and the log-sum-exp if requested; differentiable twice."""
    if (
        torch.compiler.is_compiling()
        or type(tensors.query) not in _PLAIN
        or torch._C._are_functorch_transforms_active()
    ):
        return _run_op(spec, tensors, return_lse)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        query, key, value, bias, _, _, vector = tensors
        output, lse = _Attend.apply(spec, tensors, return_lse, query, key, value, bias, vector)
        return output, lse
    output, statistics, plan = call.forward(spec, tensors)
    return output, call.lse_of(spec, plan, statistics) if return_lse else None


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, spec: AttentionSpec, tensors: Tensors, return_lse: bool, *operands: Any
    ) -> tuple[torch.Tensor, Optional]:
        output, statistics, plan = call.forward(spec, tensors)
        ctx.spec, ctx.others = spec, (tensors.slopes, tensors.seed)
        ctx.save_for_backward(*operands, output, statistics)
        ctx.set_materialize_grads(False)
        lse = call.lse_of(spec, plan, statistics).clone() if return_lse else None
        return output, lse

    @staticmethod
    def backward(ctx: Any, output_gradient: Optional, lse_gradient: Optional) -> Any:
        *operands, output, statistics = ctx.saved_tensors
        if output_gradient is None:
            output_gradient = torch.zeros_like(output)
        wanted = ctx.needs_input_grad[6]
        static = ctx.spec, ctx.others, wanted, output.detach(), statistics
        gradients = _Gradient.apply(*static, *operands, output_gradient, lse_gradient)
        return None, None, None, *gradients


class _Gradient(torch.autograd.Function):
    """Gradients of the operands: a function of them and of the incoming gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        spec: AttentionSpec,
        others: tuple[Optional, Optional],
        want_bias: bool,
        output: torch.Tensor,
        statistics: torch.Tensor,
        *inputs: Any,
    ) -> tuple[Optional, ...]:
        *operands, output_gradient, lse_gradient = inputs
        ctx.spec, ctx.others = spec, others
        ctx.save_for_backward(*inputs)
        return tuple(
            call.backward(
                spec,
                _tensors(operands, others),
                output,
                statistics,
                output_gradient,
                lse_gradient,
                want_bias,
            )
        )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *cotangents: Any) -> Any:
        *operands, output_gradient, lse_gradient = ctx.saved_tensors
        tensors = _tensors(operands, ctx.others)
        second = second_derivatives(ctx.spec, tensors, (output_gradient, lse_gradient), cotangents)
        return *[None] * 5, *second


def _tensors(operands: Sequence[Any], others: tuple[Optional, Optional]) -> Tensors:
    query, key, value, bias, vector = operands
    return Tensors(query, key, value, bias, *others, vector)


def second_derivatives(
    spec: AttentionSpec, tensors: Tensors, incoming: Sequence[Optional], cotangents: Sequence[Any]
) -> list[Optional]:
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
) -> tuple[torch.Tensor, Optional]:
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
def _attention(form: str, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    *operands, rules = arguments
    tensors = Tensors(*operands)
    spec = _read(form, tensors, rules)
    if tensors.query.device.type != "cpu":
        raise NotImplementedError("heed's native kernels are for tensors on a CPU")
    output, statistics, plan = call.forward(spec, tensors)
    return output, call.lse_of(spec, plan, statistics).clone(), statistics


@_attention.register_fake
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
    operands, (rules, output, statistics, *incoming) = arguments[:7], arguments[7:]
    tensors = Tensors(*operands)
    spec = _read(form, tensors, rules)
    gradients = call.backward(spec, tensors, output, statistics, *incoming, True)
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


# The places in `Tensors` of the operands that get gradients.
_TRAINED = (0, 1, 2, 3, 6)


def _spread(gradients: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """The gradients of the present operands, in their places among all seven."""
    given = iter(gradients)
    return [
        next(given) if place in _TRAINED and x is not None else None
        for place, x in enumerate(operands)
    ]


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
    return None, *_spread(gradients, operands), [None] * len(rules)


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
    return None, *_spread(second[:-2], operands), [None] * len(rules), None, None, *second[-2:]


_attention.register_autograd(_differentiate, setup_context=_save_forward)
_attention_gradient.register_autograd(_differentiate_gradient, setup_context=_save_gradient)
