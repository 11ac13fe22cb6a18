"""The native attention as a function that reverse-mode differentiation knows.

The kernels compute first derivatives. Higher ones come from the portable form of the same attention. JAX has no forward
mode through custom calls.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from heed.ops.backends.jax.native import call
from heed.ops.backends.jax.native.wire import Inputs, Kind, write
from heed.ops.backends.jax.portable.implementation import Portable
from heed.ops.mask import Mask
from heed.ops.mask_rules import Outline, put_together, take_apart
from heed.ops.spec import AttentionSpec, Tensors

# The operands with gradients.
_TRAINED = ("query", "key", "value", "bias", "score_vector")
Results = tuple[jax.Array, jax.Array, jax.Array]


class Static(NamedTuple):
    """What is static in an attention.

    Attributes:
        spec: without the mask.
        outlines: of the rules of the mask; None without a mask.
    """

    spec: AttentionSpec
    outlines: tuple[Outline, ...] | None

    def whole(self, numbers: Sequence[Any]) -> AttentionSpec:
        """The spec with its mask."""
        if self.outlines is None:
            return self.spec
        return dataclasses.replace(self.spec, mask=Mask(put_together(self.outlines, numbers)))

    def write(self, tensors: Tensors, numbers: Sequence[Any]) -> tuple[Kind, Inputs]:
        """The attention as a custom call."""
        return write(self.whole(numbers), tensors)


def run(spec: AttentionSpec, tensors: Tensors) -> tuple[jax.Array, jax.Array]:
    """Output and log-sum-exp (B, N, T); differentiable any number of times in reverse mode."""
    numbers, outlines = ([], None) if spec.mask is None else take_apart(spec.mask.rules)
    static = Static(dataclasses.replace(spec, mask=None), outlines)
    output, lse, _ = _run(static, tensors, tuple(numbers))
    return output, lse


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(static: Static, tensors: Tensors, numbers: Sequence[Any]) -> Results:
    return call.forward(*static.write(tensors, numbers))


def _run_forward(static: Static, tensors: Tensors, numbers: Sequence[Any]) -> tuple[Results, Any]:
    # By the function itself, whose derivative an outer differentiation then finds.
    results = _run(static, tensors, numbers)
    output, _, softmax = results
    return results, (tensors, numbers, output, softmax)


def _run_backward(static: Static, saved: Any, cotangents: Results) -> Any:
    tensors, numbers, output, softmax = saved
    # The numbers for the backward pass are no result of the attention: their gradient counts nowhere.
    found = _gradients(static, tensors, numbers, output, softmax, cotangents[:2])
    return Tensors(**_by_name(tensors, found)), None


_run.defvjp(_run_forward, _run_backward)


def _by_name(tensors: Tensors, gradients: Sequence[Any]) -> dict[str, Any]:
    """The gradients by name; None for the other tensors."""
    named = dict(zip(_trained(tensors), gradients, strict=True))
    return {name: named.get(name) for name in Tensors._fields}


def _trained(tensors: Tensors) -> list[str]:
    return [name for name in _TRAINED if getattr(tensors, name) is not None]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gradients(
    static: Static, tensors: Tensors, numbers: Any, output: Any, softmax: Any, incoming: Any
) -> tuple[jax.Array, ...]:
    """The gradients of the trained operands, in order."""
    kind, inputs = static.write(tensors, numbers)
    extras = softmax, output, *incoming
    query, key, value, *units = call.backward(kind, inputs, extras)
    found = {"query": query, "key": key, "value": value}
    if kind.is_additive:
        found["score_vector"], found["bias"] = units
    elif inputs.bias is not None:
        found["bias"] = call.bias_gradient(kind, inputs, extras)
    return tuple(found[name].reshape(getattr(tensors, name).shape) for name in _trained(tensors))


def _gradients_forward(static: Static, *arrays: Any) -> tuple[Any, Any]:
    return _gradients(static, *arrays), arrays


def _gradients_backward(static: Static, saved: Any, cotangents: Sequence[Any]) -> Any:
    tensors, numbers, _, _, incoming = saved
    second, of_incoming = second_derivatives(static.whole(numbers), tensors, incoming, cotangents)
    # Output and softmax are functions of the operands, whose gradients are complete.
    return second, None, None, None, of_incoming


def second_derivatives(
    spec: AttentionSpec, tensors: Tensors, incoming: Any, cotangents: Sequence[Any]
) -> tuple[Tensors, Any]:
    """The gradients of sum(cotangents * gradients of the trained operands), from the portable form.

    Args:
        spec, tensors: the attention.
        incoming: gradients of output and log-sum-exp; None for a log-sum-exp that is no result.
        cotangents: of the gradients of the trained operands, in order.

    Returns: those of the operands and of `incoming`.
    """
    names = _trained(tensors)

    def first(operands: list[Any], incoming: Any) -> tuple[Any, ...]:
        def attend(operands: list[Any]) -> Any:
            named = tensors._replace(**dict(zip(names, operands, strict=True)))
            results: Any = Portable().attend(spec, named, return_lse=True)
            output, lse = results
            return output, None if incoming[1] is None else lse.reshape(incoming[1].shape)

        return tuple(jax.vjp(attend, operands)[1](incoming)[0])

    operands = [getattr(tensors, name) for name in names]
    _, pull = jax.vjp(first, operands, incoming)
    second, of_incoming = pull(tuple(cotangents))
    return Tensors(**_by_name(tensors, second)), of_incoming


_gradients.defvjp(_gradients_forward, _gradients_backward)
