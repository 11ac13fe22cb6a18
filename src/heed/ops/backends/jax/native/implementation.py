"""Attention with the native kernels, on CPUs.

The kernels compute first derivatives. Higher ones come from the portable form of the same attention. JAX has no forward
mode through custom calls.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from heed.ops.backends.jax.native import _call, library
from heed.ops.backends.jax.portable.implementation import Portable, second_derivatives
from heed.ops.backends.protocol import OutputAndLse
from heed.ops.core.attention import reasons_against
from heed.ops.core.form import Form, differentiable, operands, write
from heed.ops.spec import AttentionSpec, Tensors

Several = Sequence[jax.Array]


class Native(Portable):
    """Attention with the native kernels; weights and statistics are those of the portable form."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        return reasons_against(spec, library.machine_reasons())

    def attend_numbers(
        self, spec: AttentionSpec, tensors: Tensors, return_lse: bool
    ) -> OutputAndLse:
        form, of_mask = write(spec, tensors)
        output, lse, _ = _run(form, tensors[:3], operands(tensors, of_mask))
        return output, lse if return_lse else None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(form: Form, inputs: Several, others: Several) -> Several:
    return _call.forward(form, [*inputs, *others])


def _run_forward(form: Form, inputs: Several, others: Several) -> tuple[Several, Any]:
    # By the function itself, whose derivative an outer differentiation then finds.
    results = _run(form, inputs, others)
    output, _, softmax = results
    return results, (inputs, others, output, softmax)


def _run_backward(form: Form, saved: Any, cotangents: Several) -> Any:
    inputs, others, output, softmax = saved
    # The numbers for the backward pass are no result of the attention: their gradient counts nowhere.
    found = _gradients(form, inputs, others, output, softmax, cotangents[:2])
    return tuple(found[:3]), form.in_places(found[3:], others)


_run.defvjp(_run_forward, _run_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gradients(
    form: Form, inputs: Several, others: Several, output: Any, softmax: Any, incoming: Several
) -> Several:
    """Return the gradients of query, key, value and the trained operands."""
    arrays = [*inputs, output, softmax, *incoming, *others]
    of_query, of_key, of_value, *others = _call.backward(form, arrays)
    if form.is_additive:  # the score vector's, and that of a bias, even without one
        others = others[: len(form.trained)][::-1]
    elif form.trained:
        others = [_call.bias_gradient(form, arrays), *others]
    return of_query, of_key, of_value, *others


def _gradients_forward(form: Form, *arrays: Any) -> tuple[Any, Any]:
    return _gradients(form, *arrays), arrays


def _gradients_backward(form: Form, saved: Any, cotangents: Several) -> Any:
    inputs, others, _, _, incoming = saved
    trained, attention = differentiable(form, inputs, others)

    def attend(trained: list[Any]) -> Any:
        return Portable().attend(*attention(trained), return_lse=True)

    second, of_incoming = second_derivatives(attend, trained, tuple(incoming), cotangents)
    # Output and softmax are functions of the operands, whose gradients are complete.
    return tuple(second[:3]), form.in_places(second[3:], others), None, None, of_incoming


_gradients.defvjp(_gradients_forward, _gradients_backward)
