"""The native ops as differentiable functions.

The kernels compute first derivatives. Second derivatives come from the portable form of the same attention, which is
read back from the inputs of the op. So gradients are registered once for each op, and no graph outlives its function.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from heed.ops.backends.tensorflow.check_numerics import exempt
from heed.ops.backends.tensorflow.forward_mode import check_tapes
from heed.ops.backends.tensorflow.native import library
from heed.ops.backends.tensorflow.native.wire import Wire
from heed.ops.backends.tensorflow.portable.implementation import Portable
from heed.ops.backends.tensorflow.registry import register_gradient
from heed.ops.spec import AttentionSpec, Tensors

Several = Sequence[tf.Tensor]

# The op of each layout. Its gradient ends in "_gradient"; the gradient of the bias is a separate op, which a graph can
# leave out.
_OPS = {"BTNH": "heed_attention", "BNTH": "heed_attention_heads", "BTU": "heed_additive"}


def run(spec: AttentionSpec, tensors: Tensors) -> tuple[tf.Tensor, tf.Tensor]:
    """Output and log-sum-exp; differentiable twice."""
    # The third result, row_max and row_sum, is for the gradient.
    output, lse, _ = _call(_OPS[spec.layout], tensors[:3], Wire.write(spec, tensors))
    return output, lse


def run_part(spec: AttentionSpec, tensors: Tensors) -> Several:
    """Output, log-sum-exp, and row_max and row_sum in the kernels' units, flat; no derivatives."""
    return _call(_OPS[spec.layout], tensors[:3], Wire.write(spec, tensors))


def part_gradients(spec: AttentionSpec, tensors: Tensors, **results: tf.Tensor) -> Several:
    """Gradients of query, key and value, from results over these and other keys; see `_call`."""
    name = f"{_OPS[spec.layout]}_gradient"
    return _call(name, tensors[:3], Wire.write(spec, tensors), **results)[:3]


def _call(name: str, operands: Several, wire: Wire, **others: tf.Tensor) -> list[tf.Tensor]:
    """Runs an op.

    Args:
        name: in Python: "heed_attention".
        operands: query, key and value.
        wire: the other inputs.
        others: for the backward pass, the results of the forward pass (`output`, `softmax`) and their gradients
            (`output_gradient`, `lse_gradient`).
    """
    query, key, value = operands
    results = getattr(library.ops(), name)(
        query=query, key=key, value=value, **others, **wire._asdict()
    )
    return [results] if isinstance(results, tf.Tensor) else list(results)


def _split(layout: str, op: tf.Operation, extra: int) -> tuple[Several, Several, Wire, slice]:
    """Query, key, value; `extra` inputs of the backward pass; the wire; and which of its `reals` get a gradient."""
    inputs = list(op.inputs)
    wire = Wire.of([inputs[3], *inputs[4 + extra :]]).constant()
    trained = slice(0, len(wire.reals) if layout == "BTU" else int(_has_bias(wire)))
    return inputs[:3], inputs[4 : 4 + extra], wire, trained


def _has_bias(wire: Wire) -> bool:
    # ALiBi slopes, which may be there instead, are a vector, and what sets the dtype is a number.
    return len(wire.reals) > 0 and wire.reals[0].shape.rank not in (0, 1)


def _order(
    op: tf.Operation, wire: Wire, trained: slice, gradients: Several, extra: Any = ()
) -> Any:
    """Gradients in the order of the op's inputs."""
    reals: list[tf.Tensor | None] = [None] * len(wire.reals)
    reals[trained] = gradients[3:]
    known = [*gradients[:3], None, *extra, *reals]
    return known + [None] * (len(op.inputs) - len(known))


def _first(
    op: tf.Operation, output_gradient: Any, lse_gradient: Any, _: Any, *, layout: str
) -> Any:
    operands, _none, wire, trained = _split(layout, op, 0)
    received = {
        "output": op.outputs[0],
        "softmax": op.outputs[2],
        "output_gradient": output_gradient,
        "lse_gradient": lse_gradient,
    }
    gradients = _call(f"{_OPS[layout]}_gradient", operands, wire, **received)
    if layout != "BTU" and _has_bias(wire):
        (gradient,) = _call(f"{_OPS[layout]}_bias_gradient", operands, wire, **received)
        gradient.set_shape(wire.reals[0].shape)
        gradients.append(gradient)
    return _order(op, wire, trained, gradients[: 3 + trained.stop - trained.start])


def _second(op: tf.Operation, *cotangents: tf.Tensor, layout: str, place: slice) -> Any:
    """`place`: which of the first derivatives the op computes."""
    check_tapes()
    operands, extra, wire, trained = _split(layout, op, 4)
    spec, tensors = wire.read(layout, operands)
    names = ["query", "key", "value"] + ["score_vector"] * (layout == "BTU")
    names += ["bias"] * spec.has_bias
    named = {name: tf.identity(getattr(tensors, name)) for name in names}
    watched, incoming = list(named.values()), [tf.identity(x) for x in extra[2:]]
    everything = [*watched, *incoming]
    with tf.GradientTape() as outer:
        outer.watch(everything)
        with tf.GradientTape() as inner:
            inner.watch(watched)
            results = Portable().attend(spec, tensors._replace(**named), return_lse=True)
        gradients = inner.gradient(results, watched, incoming, unconnected_gradients="zero")
    gradients = gradients[place]
    second = outer.gradient(
        gradients, everything, cotangents[: len(gradients)], unconnected_gradients="zero"
    )
    # Output and softmax are functions of the operands, whose gradients are complete.
    count = len(watched)
    return _order(op, wire, trained, second[:count], [None, None, *second[count:]])


def _register(layout: str) -> None:
    name = _OPS[layout].title().replace("_", "")
    own_bias = layout != "BTU"
    second = functools.partial(exempt(_second), layout=layout)
    register_gradient(name)(exempt(functools.partial(_first, layout=layout)))
    place = slice(0, 3 if own_bias else None)
    register_gradient(f"{name}Gradient")(functools.partial(second, place=place))
    if own_bias:
        register_gradient(f"{name}BiasGradient")(functools.partial(second, place=slice(3, 4)))


for _layout in _OPS:
    _register(_layout)
