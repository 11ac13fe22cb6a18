"""Operations that read and change shapes."""

from __future__ import annotations

import numpy as np

from heed.export.onnx.builder import Builder, Input, Value
from heed.export.onnx.registry import CONVERTERS, Convert, Converted, Op, converts


def shape_input(op: Op, g: Builder, index: int) -> Input:
    """Return the shape in an input, as int64."""
    return g.cast(op.inputs[index], np.int64)


@converts("Shape")
def _shape(op: Op, g: Builder) -> Converted:
    found = g.shape(op.inputs[0])
    return found if isinstance(found, np.ndarray) else g.narrow(g.input(found), op.dtype)


@converts("ShapeN")
def _shapes(op: Op, g: Builder) -> Converted:
    return [
        x if isinstance(x, np.ndarray) else g.narrow(g.input(x), dtype)
        for x, dtype in zip(map(g.shape, op.inputs), op.dtypes, strict=True)
    ]


_EXPRESSIONS: dict[str, Convert] = {
    "BroadcastTo": lambda op, g: g.node("Expand", op.inputs[0], shape_input(op, g, 1)),
    "ExpandDims": lambda op, g: g.node("Unsqueeze", op.inputs[0], [op.axis(1, op.rank() + 1)]),
    "Fill": lambda op, g: g.node("Expand", op.inputs[1], shape_input(op, g, 0)),
    "Range": lambda op, g: g.node("Range", *op.inputs),
    "Rank": lambda op, _: np.array(op.rank()),
    "Size": lambda op, g: g.narrow(g.node("Size", op.inputs[0]), op.dtype),
    "Tile": lambda op, g: g.node("Tile", op.inputs[0], shape_input(op, g, 1)),
}
CONVERTERS.update(_EXPRESSIONS)


@converts("Reshape")
def _reshape(op: Op, g: Builder) -> Converted:
    x, wanted = op.inputs
    if x.shape is not None and op.shape == x.shape and x.shape.count(None) <= 1:
        return x
    if op.shape is not None and op.shape.count(None) <= 1 and 0 not in op.shape:
        return g.node("Reshape", x, [-1 if n is None else n for n in op.shape])
    if wanted.constant is not None:
        return g.node("Reshape", x, wanted.constant.astype(np.int64), allowzero=1)
    return g.node("Reshape", x, shape_input(op, g, 1), allowzero=1)


@converts("BroadcastArgs")
def _broadcast_shape(op: Op, g: Builder) -> Converted:
    """Return the shape that both broadcast to."""
    lengths = [x.shape[0] for x in op.inputs if x.shape is not None and x.shape[0] is not None]
    if len(lengths) < 2:
        raise op.error("the number of axes must be known")
    longest = max(lengths)
    one, other = (
        g.concat([np.ones(longest - n, np.int64), g.cast(x, np.int64)])
        for x, n in zip(op.inputs, lengths, strict=True)
    )
    whole = g.node("Where", g.node("Equal", one, np.array(1, np.int64)), other, one)
    return g.narrow(whole, op.dtype)


@converts("Squeeze")
def _squeeze(op: Op, g: Builder) -> Converted:
    axes = [int(axis) % op.rank() for axis in op.attribute("squeeze_dims")]
    return g.node("Squeeze", op.inputs[0], *([axes] if axes else []))


@converts("Transpose")
def _transpose(op: Op, g: Builder) -> Converted:
    order = [int(axis) for axis in op.constant(1)]
    if order == sorted(order):
        return op.inputs[0]
    return g.node("Transpose", op.inputs[0], perm=order)


@converts("ConcatV2")
def _concat(op: Op, g: Builder) -> Converted:
    *parts, _ = op.inputs
    axis = op.axis(len(parts))
    # Empty parts add nothing.
    there = [x for x in parts if x.shape is None or x.shape[axis] != 0] or parts[:1]
    return there[0] if len(there) == 1 else g.node("Concat", *there, axis=axis)


@converts("Pack")
def _pack(op: Op, g: Builder) -> Converted:
    axis = op.attribute("axis") % (op.rank() + 1)
    # Sizes are int64 in ONNX, and packed sizes are usually read as a shape again.
    sizes = op.rank() == 0 and op.dtype == np.int32
    parts: list[Input] = []
    for value in op.inputs:
        x = g.cast(value, np.int64) if sizes else value
        if isinstance(x, Value) and x.constant is not None:
            x = x.constant
        if isinstance(x, np.ndarray):
            parts.append(np.expand_dims(x, axis))
        else:
            parts.append(g.node("Unsqueeze", x, [axis]))
    joined = g.concat(parts, axis)
    return g.narrow(g.input(joined), op.dtype) if sizes else joined


@converts("Unpack")
def _unpack(op: Op, g: Builder) -> Converted:
    axis = op.attribute("axis") % op.rank()
    return [
        g.node("Gather", op.inputs[0], np.array(i, np.int64), axis=axis)
        for i in range(op.attribute("num"))
    ]


@converts("Split", "SplitV")
def _split(op: Op, g: Builder) -> Converted:
    source, axis_input = (1, 0) if op.kind == "Split" else (0, 2)
    x = op.inputs[source]
    axis = op.axis(axis_input, op.rank(source))
    count = op.attribute("num_split")
    if count == 1:
        return x
    length = g.shape(x, axis, axis + 1)
    sizes: Input
    if op.kind == "SplitV":
        sizes = op.constant(1).astype(np.int64)
        if -1 in sizes:
            if not isinstance(length, np.ndarray):
                raise op.error("the size of a part is not known")
            sizes = np.where(sizes == -1, length - sizes[sizes != -1].sum(), sizes)
    elif isinstance(length, np.ndarray):
        sizes = np.repeat(length // count, count)
    else:
        sizes = g.node("Expand", g.node("Div", length, [count]), [count])
    return g.node("Split", x, sizes, outputs=count, axis=axis)


@converts("Pad", "PadV2", "MirrorPad")
def _pad(op: Op, g: Builder) -> Converted:
    paddings = shape_input(op, g, 1)
    if isinstance(paddings, np.ndarray):
        pads: Input = paddings.T.ravel()
    else:
        pads = g.node("Reshape", g.node("Transpose", paddings, perm=[1, 0]), [-1])
    if op.kind == "MirrorPad":
        if op.attribute("mode") != b"REFLECT":
            raise op.error("ONNX has no symmetric padding, only reflection")
        return g.node("Pad", op.inputs[0], pads, mode="reflect")
    return g.node("Pad", op.inputs[0], pads, op.inputs[2] if op.kind == "PadV2" else None)
