"""Convolutions and pooling over two axes (over one they come with an axis of 1); channels come last in TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heed.export.onnx.builder import Builder, Input
from heed.export.onnx.registry import Converted, Op, converts

_TO_FIRST, _TO_LAST = [0, 3, 1, 2], [0, 2, 3, 1]


def _steps(op: Op, name: str) -> Sequence[int]:
    """Return the numbers for height and width of an attribute with one for each axis."""
    if op.attribute("data_format") != b"NHWC":
        raise op.error("channels must come last")
    return op.attribute(name)[1:3]


def _padding(op: Op) -> dict[str, Any]:
    found = op.attribute("padding").decode()
    if found == "EXPLICIT":
        pads = op.attribute("explicit_paddings")
        return {"pads": [pads[2], pads[4], pads[3], pads[5]]}
    return {"auto_pad": "SAME_UPPER" if found == "SAME" else "VALID"}


def _channels_first(op: Op, g: Builder, kind: str, *others: Input, **attributes: Any) -> Converted:
    x = g.node("Transpose", op.inputs[0], perm=_TO_FIRST)
    return g.node("Transpose", g.node(kind, x, *others, **attributes), perm=_TO_LAST)


@converts("Conv2D", "DepthwiseConv2dNative")
def _convolution(op: Op, g: Builder) -> Converted:
    channels, kernel = op.inputs[0].shape[3], op.inputs[1]
    if channels is None:
        raise op.error("the number of channels must be known")
    if op.kind == "Conv2D":
        groups = channels // kernel.shape[2]
        weights = g.node("Transpose", kernel, perm=[3, 2, 0, 1])
    else:
        groups = channels
        height, width, _, times = kernel.shape
        weights = g.node("Transpose", kernel, perm=[2, 3, 0, 1])
        weights = g.node("Reshape", weights, [channels * times, 1, height, width])
    return _channels_first(
        op,
        g,
        "Conv",
        weights,
        strides=_steps(op, "strides"),
        dilations=_steps(op, "dilations"),
        group=groups,
        **_dilated_padding(op),
    )


def _dilated_padding(op: Op) -> dict[str, Any]:
    """Return the padding; as numbers for dilated kernels, for which not every runtime has `auto_pad`."""
    dilations, strides = _steps(op, "dilations"), _steps(op, "strides")
    if op.attribute("padding") != b"SAME" or max(dilations) == 1:
        return _padding(op)
    if max(strides) > 1:
        raise op.error("it has strides, dilations and padding")
    extra = [n * (k - 1) for n, k in zip(dilations, op.inputs[1].shape[:2], strict=True)]
    return {"pads": [n // 2 for n in extra] + [n - n // 2 for n in extra]}


@converts("MaxPool", "AvgPool")
def _pool(op: Op, g: Builder) -> Converted:
    return _channels_first(
        op,
        g,
        "MaxPool" if op.kind == "MaxPool" else "AveragePool",
        kernel_shape=_steps(op, "ksize"),
        strides=_steps(op, "strides"),
        **_padding(op),
    )


@converts("FusedBatchNormV3")
def _batch_normalization(op: Op, g: Builder) -> Converted:
    if op.attribute("is_training"):
        raise op.error("it is in training mode")
    if op.attribute("data_format") != b"NHWC":
        raise op.error("channels must come last")
    found = _channels_first(
        op, g, "BatchNormalization", *op.inputs[1:], epsilon=op.attribute("epsilon")
    )
    return [found, *op.inputs[3:5], *op.inputs[3:5], op.inputs[4]]
