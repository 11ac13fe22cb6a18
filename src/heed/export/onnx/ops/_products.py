"""Matrix products."""

from __future__ import annotations

from heed.export.onnx.builder import Builder, Input
from heed.export.onnx.registry import Converted, Op, converts


def _adjoint(op: Op, g: Builder, index: int) -> Input:
    """Return an input with its last two axes exchanged."""
    rank = op.rank(index)
    return g.node("Transpose", op.inputs[index], perm=[*range(rank - 2), rank - 1, rank - 2])


@converts("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _matmul(op: Op, g: Builder) -> Converted:
    names = ("transpose_a", "transpose_b") if op.kind == "MatMul" else ("adj_x", "adj_y")
    return g.node(
        "MatMul",
        *(
            _adjoint(op, g, index) if op.attribute(name) else op.inputs[index]
            for index, name in enumerate(names)
        ),
    )


@converts("Einsum")
def _einsum(op: Op, g: Builder) -> Converted:
    return g.node("Einsum", *op.inputs, equation=op.attribute("equation").decode())
