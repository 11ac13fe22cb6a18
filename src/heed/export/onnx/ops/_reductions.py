"""Reductions, cumulative sums, and the largest entries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heed.export.onnx.builder import Builder, Input
from heed.export.onnx.registry import Converted, Op, converts

_ALIKE = {
    "EuclideanNorm": "ReduceL2",
    "Max": "ReduceMax",
    "Mean": "ReduceMean",
    "Min": "ReduceMin",
    "Prod": "ReduceProd",
    "Sum": "ReduceSum",
}


def _axes(op: Op) -> Sequence[int]:
    rank = op.rank()
    return sorted({int(axis) % rank for axis in np.ravel(op.constant(1))} if rank else ())


@converts(*_ALIKE)
def _reduce(op: Op, g: Builder) -> Converted:
    return g.reduce(_ALIKE[op.kind], op.inputs[0], _axes(op), op.attribute("keep_dims"))


@converts("All", "Any")
def _logical(op: Op, g: Builder) -> Converted:
    kind = "ReduceMin" if op.kind == "All" else "ReduceMax"
    numbers = g.cast(op.inputs[0], np.int32)
    return g.cast(g.reduce(kind, numbers, _axes(op), op.attribute("keep_dims")), bool)


@converts("ArgMax", "ArgMin")
def _arg(op: Op, g: Builder) -> Converted:
    axis = op.axis(1)
    return g.narrow(g.node(op.kind, op.inputs[0], axis=axis, keepdims=0), op.dtype)


@converts("Cumsum")
def _cumsum(op: Op, g: Builder) -> Converted:
    return g.node(
        "CumSum",
        op.inputs[0],
        np.array(op.axis(1), np.int64),
        exclusive=int(op.attribute("exclusive")),
        reverse=int(op.attribute("reverse")),
    )


@converts("TopKV2")
def _top_k(op: Op, g: Builder) -> Converted:
    count = g.node("Reshape", g.cast(op.inputs[1], np.int64), [1])
    values, indices = g.node("TopK", op.inputs[0], count, outputs=2)
    return [values, g.narrow(indices, op.dtypes[1])]


@converts("MatrixBandPart")
def _band(op: Op, g: Builder) -> Converted:
    """Keep the given numbers of sub- and super-diagonals; all for a negative number."""
    x: Input = op.inputs[0]
    lower, upper = int(op.constant(1)), int(op.constant(2))
    if upper >= 0:
        x = g.node("Trilu", x, np.array(upper, np.int64), upper=0)
    if lower >= 0:
        x = g.node("Trilu", x, np.array(-lower, np.int64), upper=1)
    return x
