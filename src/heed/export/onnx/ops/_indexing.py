"""Slices, gathers and scatters."""

from __future__ import annotations

from typing import Any

import numpy as np

from heed.export.onnx.builder import Builder, Input
from heed.export.onnx.ops._shapes import shape_input
from heed.export.onnx.registry import CONVERTERS, Convert, Converted, Op, converts

_END = np.iinfo(np.int64).max


@converts("GatherV2", "Gather", "ResourceGather")
def _gather(op: Op, g: Builder) -> Converted:
    x, indices = op.inputs[:2]
    axis = op.axis(2) if op.kind == "GatherV2" else 0
    batch = 0 if op.kind == "Gather" else op.attribute("batch_dims")
    if not batch:
        return g.node("Gather", x, indices, axis=axis)
    batch %= op.rank(1) + 1
    if axis != batch:
        raise op.error("the axis must follow the batch axes")
    places = g.node("Unsqueeze", g.cast(indices, np.int64), [-1])
    return g.node("GatherND", x, places, batch_dims=batch)


_EXPRESSIONS: dict[str, Convert] = {
    "GatherNd": lambda op, g: g.node("GatherND", op.inputs[0], g.cast(op.inputs[1], np.int64)),
    "ReverseSequence": lambda op, g: g.node(
        "ReverseSequence",
        op.inputs[0],
        g.cast(op.inputs[1], np.int64),
        batch_axis=op.attribute("batch_dim"),
        time_axis=op.attribute("seq_dim"),
    ),
    "Where": lambda op, g: g.node("Transpose", g.node("NonZero", op.inputs[0]), perm=[1, 0]),
}
CONVERTERS.update(_EXPRESSIONS)


@converts("OneHot")
def _one_hot(op: Op, g: Builder) -> Converted:
    """Gather: ONNX's own operator counts negative indices from the end; in TensorFlow they give no entry."""
    indices, depth, on, off = op.inputs
    axis = op.attribute("axis") % (op.rank() + 1)
    first, step = np.array(0, np.int64), np.array(1, np.int64)
    places = g.node("Range", first, g.cast(depth, np.int64), step)
    behind = op.rank() - axis
    if behind:
        places = g.node("Reshape", places, [-1] + [1] * behind)
    there = g.node("Equal", g.node("Unsqueeze", g.cast(indices, np.int64), [axis]), places)
    return g.where(there, on, off, op.dtype)


@converts("Slice")
def _slice(op: Op, g: Builder) -> Converted:
    x, _, size = op.inputs
    begin = shape_input(op, g, 1)
    axes = list(range(op.rank()))
    if size.constant is not None and isinstance(begin, np.ndarray):
        ends: Input = np.where(size.constant < 0, _END, begin + size.constant).astype(np.int64)
    elif size.constant is not None and np.all(size.constant < 0):
        ends = [_END] * len(axes)
    else:
        sizes = shape_input(op, g, 2)
        rest = g.node("Less", sizes, np.array(0, np.int64))
        ends = g.node("Where", rest, np.array(_END), g.node("Add", begin, sizes))
    return g.node("Slice", x, begin, ends, axes)


@converts("ReverseV2")
def _reverse(op: Op, g: Builder) -> Converted:
    axes = [int(axis) % op.rank() for axis in op.constant(1)]
    if not axes:
        return op.inputs[0]
    many = len(axes)
    return g.node("Slice", op.inputs[0], [_END] * many, [-_END] * many, axes, [-1] * many)


@converts("StridedSlice")
def _strided_slice(op: Op, g: Builder) -> Converted:
    """Return x[a:b:c, i, ..., None]: first slices, then single indices, which remove axes, then new axes."""
    x: Input = op.inputs[0]
    rank, count = op.rank(), op.inputs[1].shape[0]
    masks = {
        name: op.attribute(f"{name}_mask")
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }

    def has(name: str, i: int) -> bool:
        return bool(masks[name] >> i & 1)

    known = [value.constant for value in op.inputs[1:4]]

    def entry(which: int, i: int) -> Input:
        """Return entry i of the beginnings (0), ends (1) or strides (2), (1,)."""
        array = known[which]
        if array is not None:
            return array[i : i + 1].astype(np.int64)
        return g.node("Slice", shape_input(op, g, 1 + which), [i], [i + 1])

    ellipses = [i for i in range(count) if has("ellipsis", i)]
    taken = sum(not has("new_axis", i) for i in range(count) if i not in ellipses)
    axis = 0
    cuts: list[tuple[int, Input, Input, Input]] = []
    single: list[tuple[int, Input]] = []
    layout: list[str] = []  # the axes of the result: "stays" or "new"
    for i in range(count):
        if i in ellipses:
            axis += rank - taken
            layout += ["stays"] * (rank - taken)
        elif has("new_axis", i):
            layout.append("new")
        elif has("shrink_axis", i):
            single.append((axis, entry(0, i)))
            axis += 1
        else:
            stride = known[2]
            if stride is None:
                raise op.error("its strides must be constants")
            back = int(stride[i]) < 0
            begin = np.array([_END if back else 0]) if has("begin", i) else entry(0, i)
            end = np.array([-_END if back else _END]) if has("end", i) else entry(1, i)
            if not (has("begin", i) and has("end", i) and stride[i] == 1):
                cuts.append((axis, begin, end, entry(2, i)))
            axis += 1
            layout.append("stays")
    if cuts:
        axes = [cut[0] for cut in cuts]
        begins, ends, steps = (g.concat([cut[1:][k] for cut in cuts]) for k in range(3))
        x = g.node("Slice", x, begins, ends, axes, steps)
    for axis, index in reversed(single):
        x = g.node("Gather", x, _scalar(g, index), axis=axis)
    new = [i for i, kind in enumerate(layout) if kind == "new"]
    return g.node("Unsqueeze", x, new) if new else x


def _scalar(g: Builder, x: Input) -> Input:
    return x.reshape(()) if isinstance(x, np.ndarray) else g.node("Squeeze", x, [0])


@converts("LowerBound", "UpperBound")
def _bound(op: Op, g: Builder) -> Converted:
    """Return the number of entries of each sorted row (B, N) before each number (B, M)."""
    row, numbers = g.node("Unsqueeze", op.inputs[0], [1]), g.node("Unsqueeze", op.inputs[1], [2])
    before = g.node("Less" if op.kind == "LowerBound" else "LessOrEqual", row, numbers)
    return g.reduce("ReduceSum", g.cast(before, op.dtype), [2], False)


@converts("TensorScatterUpdate", "TensorScatterAdd", "TensorScatterMax", "TensorScatterMin")
def _scatter(op: Op, g: Builder) -> Converted:
    x, indices, updates = op.inputs
    kind = op.kind.removeprefix("TensorScatter").lower()
    how = None if kind == "update" else kind
    return g.node("ScatterND", x, g.cast(indices, np.int64), updates, reduction=how)


@converts("ScatterNd")
def _scatter_new(op: Op, g: Builder) -> Converted:
    indices, updates, _ = op.inputs
    zeros = g.node("Expand", np.zeros((), op.dtype), shape_input(op, g, 2))
    return g.node("ScatterND", zeros, g.cast(indices, np.int64), updates, reduction="add")


@converts("XlaDynamicUpdateSlice")
def _update_slice(op: Op, g: Builder) -> Converted:
    """Replace a part of x by `update`; move its start so that it fits."""
    x, update, start = op.inputs
    differing = [
        axis
        for axis in range(op.rank())
        if x.shape[axis] is None or x.shape[axis] != update.shape[axis]
    ]

    def write(x: Input, update: Input, axes: list[int]) -> Input:
        if not axes:
            return update
        axis, *others = axes
        count, room = (g.node("Shape", y, start=axis, end=axis + 1) for y in (op.inputs[1], x))
        last = g.node("Sub", room, count)
        place = g.cast(start, np.int64)
        here: Any = g.node("Slice", place, [axis], [axis + 1])
        here = g.node("Max", g.node("Min", here, last), np.zeros(1, np.int64))
        behind = g.node("Add", here, count)
        before = g.node("Slice", x, [0], here, [axis])
        after = g.node("Slice", x, behind, [_END], [axis])
        if others:
            update = write(g.node("Slice", x, here, behind, [axis]), update, others)
        return g.node("Concat", before, update, after, axis=axis)

    return write(x, update, differing)
