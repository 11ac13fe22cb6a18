"""Attention with the native kernels, on CPUs, as differentiable functions of PyTorch.

Eager calls use `derivatives.attend`, which costs the least. Where PyTorch records a call (`torch.compile`,
`torch.jit.trace`, `make_fx`, fake tensors), the kernels are ops of `torch.library`, which it keeps whole.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from heed.ops.backends.protocol import OutputAndLse
from heed.ops.backends.torch import derivatives
from heed.ops.backends.torch.derivatives import TRAINED, OptionalTensor
from heed.ops.backends.torch.device import device_of
from heed.ops.backends.torch.graph_breaks import in_python
from heed.ops.backends.torch.native import _call
from heed.ops.backends.torch.operands import (
    are_transforms_active,
    have_memory,
    is_observed,
    is_transformed,
    legacy_vmap_level,
    require_grad,
)
from heed.ops.backends.torch.portable import blockwise
from heed.ops.backends.torch.portable.implementation import Portable
from heed.ops.core.attention import reasons_against, reasons_of_machine
from heed.ops.core.form import Form, functions, operands, read, trained_operands, write
from heed.ops.core.library import load
from heed.ops.spec import AttentionSpec, Tensors


@torch.compiler.assume_constant_result
def machine_reasons() -> tuple[str, ...]:
    """Return why the kernels cannot run on this machine, as sentences."""
    return _find_reasons(load()[1], device_of)


_find_reasons = functools.cache(reasons_of_machine)


class Native(Portable):
    """Attention with the native kernels; weights and statistics are those of the portable form."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        return reasons_against(spec, machine_reasons())

    def attend(self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool) -> OutputAndLse:
        return _run(spec, tensors, return_lse)


def _run(spec: AttentionSpec, tensors: Tensors, return_lse: bool) -> OutputAndLse:
    if torch.compiler.is_compiling():
        if functions(spec):  # whose programs are no values that torch.compile knows
            return _run_in_python(spec, tensors, return_lse)
        if _is_transformed_while_compiling():  # the op has no rules for `vmap` and forward mode
            return derivatives.attend(KERNEL, spec, tensors, return_lse)
        return _run_op(spec, tensors, return_lse)
    has_memory, observed = _have_memory(spec, tensors), is_observed()
    # A tangent would get lost in the op.
    if forward_ad._current_level >= 0 or (
        observed and (are_transforms_active() or legacy_vmap_level())
    ):
        return derivatives.attend(KERNEL, spec, tensors, return_lse)
    if observed or not has_memory:
        return _run_op(spec, tensors, return_lse)
    if torch.is_grad_enabled() and (require_grad(tensors) or require_grad(spec.score.operands)):
        return derivatives.attend_unobserved(KERNEL, spec, tensors, return_lse)
    if not return_lse:
        return _call.forward_alone(spec, tensors), None
    return _call.forward(spec, tensors, True)[:2]


_run_in_python = in_python(_run, "functions of scores and masks")


_is_transformed_while_compiling = torch.compiler.assume_constant_result(is_transformed)


def _have_memory(spec: AttentionSpec, tensors: Tensors) -> bool:
    """Return whether the core can read all operands, those of the mask too.

    Raises:
        ValueError: if they are on several devices.
    """
    rest = () if spec.is_plain else derivatives.rest_of(spec)
    if have_memory(tensors) and (not rest or have_memory(rest)):
        return True
    for name, x in (*tensors._asdict().items(), *(("mask", x) for x in rest)):
        if x is not None and x.device != tensors.query.device:
            raise ValueError(
                f"`{name}` must be on the device of `query`. Received: {name}.device={x.device}, "
                f"query.device={tensors.query.device}"
            )
    return False


class _Kernel:
    """The native kernels."""

    forward_unobserved = staticmethod(_call.forward)

    def forward(
        self, spec: AttentionSpec, tensors: Tensors, return_lse: bool
    ) -> tuple[torch.Tensor, OptionalTensor, torch.Tensor]:
        # Recorded below a transformation, as in `torch.func.linearize`.
        if is_observed() or not have_memory(tensors):
            return torch.ops.heed.attention(*_Call.of(spec, tensors))
        return _call.forward(spec, tensors, return_lse)

    def backward(
        self,
        spec: AttentionSpec,
        tensors: Tensors,
        output: torch.Tensor,
        statistics: torch.Tensor,
        incoming: Sequence[OptionalTensor],
        wanted: Sequence[bool],
    ) -> list[OptionalTensor]:
        output_gradient, lse_gradient = incoming
        if output_gradient is None:
            output_gradient = torch.zeros_like(output)
        if is_observed() or not have_memory(tensors):
            if lse_gradient is None:
                lse_gradient = statistics.new_zeros(spec.lse_shape)
            received = output, statistics, output_gradient, lse_gradient
            found = iter(torch.ops.heed.attention_gradient(*_Call.of(spec, tensors), *received))
            return _in_places(tensors, found, trained_operands(spec))
        return _call.backward(
            spec, tensors, output, statistics, output_gradient, lse_gradient, wanted
        )


KERNEL: Any = _Kernel()


def _in_places(tensors: Tensors, found: Iterator[Any], trained: Sequence[bool]) -> list[Any]:
    """Return what there is for each operand that gets a gradient, None for the others; see `derivatives.Kernel`.

    `trained` says which operands of the score get one.
    """
    named = [None if tensors[place] is None else next(found) for place in TRAINED]
    return [*named, *(next(found) if is_trained else None for is_trained in trained)]


# Ops of torch.library


class _Call(NamedTuple):
    """The first arguments of an op: an attention as `heed.ops.core.form` writes it.

    Its numbers are arguments of their own: they may be symbols while tracing.
    """

    reals: Sequence[float]
    integers: Sequence[int]
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    operands: Sequence[torch.Tensor]

    @classmethod
    def of(cls, spec: AttentionSpec, tensors: Tensors) -> _Call:
        form, of_mask = write(spec, tensors)
        return cls(form.reals, form.integers, *tensors[:3], operands(tensors, of_mask))

    @property
    def form(self) -> Form:
        return Form.of(self.reals, self.integers)

    def read(self) -> tuple[AttentionSpec, Tensors]:
        """Return the attention, for tensors of any sizes."""
        return read(self.form, self.query, self.key, self.value, self.operands)

    def trained(self) -> list[torch.Tensor]:
        """Return query, key, value, and the operands that get gradients."""
        return [*self[2:5], *(self.operands[place] for place in self.form.trained_places)]

    def gradients(self, found: Sequence[Any]) -> list[Any]:
        """Return the gradients of the arguments of an op, from those of the trained ones."""
        of_operands = self.form.in_places(found[3:], self.operands)
        # PyTorch takes an empty list for one of tensors, and wants one.
        return [None, None if self.integers else [], *found[:3], of_operands]


def _run_op(spec: AttentionSpec, tensors: Tensors, return_lse: bool) -> OutputAndLse:
    output, lse, _ = torch.ops.heed.attention(*_Call.of(spec, tensors))
    return output, lse if return_lse else None


_CALL = (
    "float[] reals, SymInt[] integers, Tensor query, Tensor key, Tensor value, Tensor[] operands"
)
_ARGUMENTS = len(_Call._fields)


@torch.library.custom_op(
    "heed::attention", mutates_args=(), schema=f"({_CALL}) -> (Tensor, Tensor, Tensor)"
)
def _attention_op(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    spec, tensors = _Call(*arguments).read()
    if tensors.query.device.type != "cpu":
        raise NotImplementedError("heed's native kernels are for tensors on a CPU")
    output, lse, statistics = _call.forward(spec, tensors, True)
    return output, lse.clone(), statistics


@_attention_op.register_fake
def _(*arguments: Any) -> Any:
    of = _Call(*arguments)
    query, layout = of.query, of.form.layout
    compute = torch.float64 if query.dtype == torch.float64 else torch.float32
    output = query.new_empty((*query.shape[:-1], of.value.shape[-1]))
    axes = {"BTNH": (0, 2, 1), "BNTH": (0, 1, 2), "BTU": (0, 1)}[layout]
    lse = query.new_empty([query.shape[axis] for axis in axes], dtype=compute)
    numbers = 3 * lse.numel()
    if layout == "BTU":  # with the scores, if they are kept
        numbers = torch.library.get_ctx().new_dynamic_size()
    return output, lse, query.new_empty((numbers,), dtype=compute)


def _dense(x: torch.Tensor) -> torch.Tensor:
    """Return a fake result like `x`. Not in its strides: when the op runs, it may get the operand in others."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op(
    "heed::attention_gradient",
    mutates_args=(),
    schema=(
        f"({_CALL}, Tensor output, Tensor statistics, Tensor output_gradient, Tensor lse_gradient)"
        " -> Tensor[]"
    ),
)
def _attention_gradient(*arguments: Any) -> list[torch.Tensor]:
    spec, tensors = _Call(*arguments[:_ARGUMENTS]).read()
    received: Any = arguments[_ARGUMENTS:]
    wanted = [True] * (len(TRAINED) + len(spec.score.operands))
    options: Any = {"wanted": wanted, "strides": torch.contiguous_format}
    gradients = _call.backward(spec, tensors, *received, **options)
    return [x for x in gradients if x is not None]


@_attention_gradient.register_fake
def _(*arguments: Any) -> list[Any]:
    return [_dense(x) for x in _Call(*arguments[:_ARGUMENTS]).trained()]


@torch.library.custom_op(
    "heed::attention_second_gradient",
    mutates_args=(),
    schema=f"({_CALL}, Tensor output_gradient, Tensor lse_gradient, Tensor[] cotangents) -> Tensor[]",
)
def _attention_second_gradient(*arguments: Any) -> list[torch.Tensor]:
    spec, tensors = _Call(*arguments[:_ARGUMENTS]).read()
    *incoming, cotangents = arguments[_ARGUMENTS:]
    trained = trained_operands(spec)
    whole = _in_places(tensors, iter(cotangents), trained)
    second = blockwise.second(spec, tensors, incoming, whole)
    wanted = [True] * len(TRAINED) + [*trained, True, True]
    found = [x for x, is_wanted in zip(second, wanted, strict=True) if is_wanted and x is not None]
    return [x.clone(memory_format=torch.contiguous_format) for x in found]


@_attention_second_gradient.register_fake
def _(*arguments: Any) -> list[Any]:
    *incoming, _ = arguments[_ARGUMENTS:]
    return [_dense(x) for x in (*_Call(*arguments[:_ARGUMENTS]).trained(), *incoming)]


def _save(ctx: Any, arguments: Sequence[Any], *others: torch.Tensor) -> None:
    ctx.numbers, tensors = arguments[:2], arguments[2:_ARGUMENTS]
    ctx.save_for_backward(*tensors[:3], *tensors[3], *others)


def _saved(ctx: Any, others: int) -> tuple[_Call, list[torch.Tensor]]:
    """Return the arguments of the op, and the other tensors, of which there are so many."""
    query, key, value, *saved = ctx.saved_tensors
    reals, integers = ctx.numbers
    return _Call(reals, integers, query, key, value, saved[:-others]), saved[-others:]


def _save_forward(ctx: Any, inputs: Any, output: Any) -> None:
    _save(ctx, inputs, output[0], output[2])


def _differentiate(ctx: Any, output_gradient: Any, lse_gradient: Any, _: Any) -> Any:
    of, others = _saved(ctx, 2)
    found = torch.ops.heed.attention_gradient(*of, *others, output_gradient, lse_gradient)
    return tuple(of.gradients(found))


def _save_gradient(ctx: Any, inputs: Any, output: Any) -> None:
    _save(ctx, inputs, *inputs[-2:])


def _differentiate_gradient(ctx: Any, cotangents: Any) -> Any:
    of, incoming = _saved(ctx, 2)
    second = torch.ops.heed.attention_second_gradient(*of, *incoming, list(cotangents))
    return *of.gradients(second[:-2]), None, None, *second[-2:]


_attention_op.register_autograd(_differentiate, setup_context=_save_forward)
_attention_gradient.register_autograd(_differentiate_gradient, setup_context=_save_gradient)
