"""Attention with the native kernels, on CPUs, by ops that TensorFlow differentiates.

The kernels compute first derivatives. Second derivatives come from the portable form of the same attention, which is
read back from the inputs and the form of the op. So gradients are registered once for each op, and no graph outlives
its function.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from heed.ops.backends.protocol import OutputAndLse
from heed.ops.backends.tensorflow.check_numerics import exempt
from heed.ops.backends.tensorflow.derivatives import (
    differentiate_twice,
    has_tangents,
    register_gradient,
)
from heed.ops.backends.tensorflow.native import library
from heed.ops.backends.tensorflow.portable.implementation import Portable
from heed.ops.core.attention import reasons_against
from heed.ops.core.form import Form, differentiable, operands, trained_operands, write
from heed.ops.spec import AttentionSpec, Tensors

Several = Sequence[tf.Tensor]


class Native(Portable):
    """Attention with the native kernels; weights and statistics are those of the portable form."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        of_machine = library.machine_reasons()
        reasons = reasons_against(spec, of_machine)
        if not of_machine and library.compiled_by_xla():
            reasons.insert(0, "XLA compiles this function, and it cannot compile the native ops")
        return reasons

    def attend(self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool) -> OutputAndLse:
        if has_tangents(tensors):
            return super().attend(spec, tensors, return_lse=return_lse)
        output, lse, _ = run(spec, tensors)
        return output, lse if return_lse else None


def run(spec: AttentionSpec, tensors: Tensors) -> Several:
    """Return output and log-sum-exp, differentiable twice, and row_max and row_sum in the kernels' units, flat."""
    call = _Call.of(spec, tensors)
    results = library.ops().heed_attention(
        *tensors[:3], operands=operands(tensors, call.added), form=call.form, C=call.dtype
    )
    if not hasattr(results[1], "numpy"):  # in a graph
        results[1].set_shape(spec.lse_shape)
    return results


def part_gradients(spec: AttentionSpec, tensors: Tensors, **received: tf.Tensor) -> Several:
    """Return gradients of query, key and value, from results over these and other keys.

    Args:
        spec, tensors: of dot-product attention.
        received: the results of the forward pass (`output`, `softmax`) and their gradients (`output_gradient`,
            `lse_gradient`).
    """
    call = _Call.of(spec, tensors)
    query, key, value = tensors[:3]
    further = sum(trained_operands(spec))
    others = {"operands": operands(tensors, call.added), "form": call.form, "G": further}
    return library.ops().heed_attention_gradient(
        query=query, key=key, value=value, **others, **received
    )[:3]


class _Call(NamedTuple):
    """What is the same in all calls of a spec without tensors.

    TensorFlow keeps a kernel for each attribute of an eager op, for ever: there the form is an operand.
    """

    form: bytes  # see `heed.ops.core.form`; empty if it is the last operand
    added: Several  # the operands that the mask adds, and the form
    dtype: tf.DType  # of the computation

    @classmethod
    def of(cls, spec: AttentionSpec, tensors: Tensors) -> _Call:
        threads, is_eager = library.threads(), library.is_eager()
        key = ("form", threads, is_eager)
        call = spec.cache.get(key)
        if call is None:
            form, added = write(spec, tensors, threads)
            packed = form.pack()
            if is_eager:
                with tf.device("CPU:0"):
                    added.append(tf.constant(np.frombuffer(packed, np.int64)))
                packed = b""
            call = cls(packed, added, tf.as_dtype(spec.dtype))
            if spec.is_plain:
                spec.cache[key] = call
        return call


def _form_of(op: tf.Operation) -> Form:
    return Form.unpack(op.get_attr("form") or op.inputs[-1].numpy().tobytes())


@register_gradient("HeedAttention")
@exempt
def _first(op: tf.Operation, output_gradient: Any, lse_gradient: Any, _: Any) -> Any:
    form, others = _form_of(op), op.inputs[3:]
    arguments = {
        **dict(zip(("query", "key", "value"), op.inputs, strict=False)),
        "output": op.outputs[0],
        "softmax": op.outputs[2],
        "output_gradient": output_gradient,
        "lse_gradient": lse_gradient,
        "operands": others,
        "form": op.get_attr("form"),
    }
    further = 2 if form.is_additive else len(form.captured_places)
    *gradients, found = library.ops().heed_attention_gradient(G=further, **arguments)
    if form.is_additive:  # the score vector's, and that of a bias, even without one
        found = found[: len(form.trained)][::-1]
    elif form.trained:
        found = [library.ops().heed_attention_bias_gradient(**arguments), *found]
    for place, gradient in zip(form.trained_places, found, strict=True):
        gradient.set_shape(others[place].shape)
    return [*gradients, *form.in_places(found, others)]


@exempt
def _second(op: tf.Operation, *cotangents: tf.Tensor, of_bias: bool) -> Any:
    """Return `of_bias`: whether the op computes the gradient of the bias of scores alone."""
    inputs, incoming, others = op.inputs[:3], op.inputs[5:7], op.inputs[7:]
    form = _form_of(op)
    trained, attention = differentiable(form, inputs, others)
    if of_bias:
        cotangents = (None, None, None, *cotangents, *[None] * len(form.captured_places))
    elif form.is_additive:
        cotangents = (*cotangents[:3], *cotangents[3:][: len(form.trained)][::-1])
    else:
        cotangents = (*cotangents[:3], *[None] * len(form.trained), *cotangents[3:])

    def attend(*trained: tf.Tensor) -> Any:
        return Portable().attend(*attention(trained), return_lse=True)

    second = differentiate_twice(attend, trained, incoming, cotangents)
    # Output and softmax are functions of the operands, whose gradients are complete.
    return [*second[:3], None, None, *second[-2:], *form.in_places(second[3:-2], others)]


register_gradient("HeedAttentionGradient")(functools.partial(_second, of_bias=False))
register_gradient("HeedAttentionBiasGradient")(functools.partial(_second, of_bias=True))
