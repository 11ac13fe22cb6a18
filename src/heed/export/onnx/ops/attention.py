"""Attention of scaled products, which is one call in the graph, to ONNX' operator of that name.

`marked` makes the call: a function of its own, whose attribute says what it is. `Attention` came with opset 23; before,
the call is put in line like any other.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tensorflow as tf

from heed.export.onnx.builder import Builder, Input, Value
from heed.export.onnx.registry import Converted, Op
from heed.ops.backends.tensorflow.exportable import Expression, attention

_MARK = "heed.attention "
_OPSET = 23
# onnxruntime has kernels for these.
_DTYPES = (np.float32, np.float16)


def marked(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    visible: tf.Tensor | None,
    bias: tf.Tensor | None,
    expression: Expression,
) -> tf.Tensor:
    """`attention` as one call, which the converter recognises. For `exportable.replace_attention`."""
    optional = {"visible": visible, "bias": bias}
    there = {name: x for name, x in optional.items() if x is not None}
    mark = _MARK + json.dumps({"given": list(there), **expression._asdict()}, sort_keys=True)

    def heed_attention(query: Any, key: Any, value: Any, *others: Any) -> tf.Tensor:
        given = dict(zip(there, others, strict=True))
        return attention(query, key, value, given.get("visible"), given.get("bias"), expression)

    function = tf.function(heed_attention, autograph=False, experimental_implements=mark)
    return function(query, key, value, *there.values())


def _said(op: Op) -> dict[str, Any] | None:
    """What the mark of a call says, if it has one."""
    function = op.converter.function(op.source, "f")
    mark = function.cached_definition.attr["_implements"].s.decode()
    return json.loads(mark.removeprefix(_MARK)) if mark.startswith(_MARK) else None


def attend(op: Op, g: Builder) -> Converted:
    """The `Attention` of a call that is marked as one, where there is such an operator; else None."""
    said = _said(op)
    if said is None or g.opset < _OPSET or op.inputs[0].dtype not in _DTYPES:
        return None
    query, key, value, *others = op.inputs
    given = dict(zip(said["given"], others, strict=True))
    return g.node(
        "Attention",
        query,
        key,
        value,
        _mask(g, query, key, given.get("visible"), given.get("bias")),
        scale=float(said["scale"]),
        softcap=None if said["soft_cap"] is None else float(said["soft_cap"]),
        is_causal=int(said["is_causal"]),
    )


def _mask(g: Builder, query: Value, key: Value, visible: Value | None, bias: Value | None) -> Input:
    """Booleans or, where something is added, numbers with -inf for what is hidden; all of T and S are there.

    The operator says that T and S may be broadcast; onnxruntime does not.
    """
    mask: Any = visible if bias is None else bias
    if mask is None:
        return None
    shapes = [x.shape for x in (visible, bias) if x is not None]
    if bias is not None and visible is not None:
        mask = g.node("Where", visible, bias, np.array(-np.inf, bias.dtype))
    lengths = query.shape[2], key.shape[2]  # type: ignore[index]
    if None not in lengths and any(s is not None and s[-2:] == lengths for s in shapes):
        return mask
    return g.node("Expand", mask, g.concat([g.shape(query, 2, 3), g.shape(key, 2, 3)]))
