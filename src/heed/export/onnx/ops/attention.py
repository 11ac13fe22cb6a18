"""Converts dot-product attention, one call in the graph, to ONNX's operator `Attention`.

`call_marked` makes the call: a function with an attribute that marks it. `Attention` came with opset 23; before, the
call is inlined like any other.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import tensorflow as tf

from heed.export.onnx.builder import Builder, Input, Value
from heed.export.onnx.registry import Converted, Op
from heed.ops.backends.tensorflow.exportable import Expression, attention
from heed.ops.scores import DotScore

_MARK = "heed.attention "
_OPSET = 23
# onnxruntime has kernels for these.
_DTYPES = (np.float32, np.float16)


def call_marked(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    visible: tf.Tensor | None,
    bias: tf.Tensor | None,
    expression: Expression,
) -> tf.Tensor:
    """Call `attention` as a function that the converter recognises. For `exportable.replace_attention`."""
    masks = {"visible": visible, "bias": bias}
    masks = {name: x for name, x in masks.items() if x is not None}
    score, options = dataclasses.asdict(expression.score), expression._asdict()
    mark = _MARK + json.dumps({**options, "masks": list(masks), "score": score}, sort_keys=True)

    def heed_attention(query: Any, key: Any, value: Any, *others: Any) -> tf.Tensor:
        given = dict(zip(masks, others, strict=True))
        return attention(query, key, value, given.get("visible"), given.get("bias"), expression)

    function = tf.function(heed_attention, autograph=False, experimental_implements=mark)
    return function(query, key, value, *masks.values())


def _read_mark(op: Op) -> dict[str, Any] | None:
    """Return the options in the mark of a call, or None without a mark."""
    function = op.converter.function(op.source, "f")
    mark = function.cached_definition.attr["_implements"].s.decode()
    return json.loads(mark.removeprefix(_MARK)) if mark.startswith(_MARK) else None


def attend(op: Op, g: Builder) -> Converted:
    """Return the `Attention` of a marked call; None without a mark, or if the opset or dtype has no such operator."""
    options = _read_mark(op)
    if options is None or g.opset < _OPSET or op.inputs[0].dtype not in _DTYPES:
        return None
    query, key, value, *others = op.inputs
    given = dict(zip(options["masks"], others, strict=True))
    score = DotScore(**options["score"])
    return g.node(
        "Attention",
        query,
        key,
        value,
        _mask(g, query, key, given.get("visible"), given.get("bias")),
        **score.onnx_attributes(),
        is_causal=int(options["is_causal"]),
    )


def _mask(g: Builder, query: Value, key: Value, visible: Value | None, bias: Value | None) -> Input:
    """Return the mask: booleans or, with a bias, numbers with -inf for hidden pairs; expanded to (..., T, S).

    By its specification the operator broadcasts T and S; in onnxruntime it does not.
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
