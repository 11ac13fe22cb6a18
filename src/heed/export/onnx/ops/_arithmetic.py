"""Elementwise operations (arithmetic, comparisons, activations, dtypes) and matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from heed.export.onnx.builder import Builder, Input
from heed.export.onnx.registry import CONVERTERS, Convert, Converted, Op, converts

# Operations that become one node with the same inputs: those with ONNX's name, and others.
_ALIKE = {
    name: name
    for name in (
        *("Abs", "Acos", "Add", "Asin", "Atan", "Ceil", "Cos", "Cosh", "Elu", "Equal", "Erf"),
        *("Exp", "Floor", "Greater", "IsInf", "Less", "Log", "Neg", "Pow", "Reciprocal", "Relu"),
        *("Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub"),
        *("Tan", "Tanh"),
    )
} | {
    "AddN": "Sum",
    "AddV2": "Add",
    "GreaterEqual": "GreaterOrEqual",
    "IsNan": "IsNaN",
    "LessEqual": "LessOrEqual",
    "LogicalAnd": "And",
    "LogicalNot": "Not",
    "LogicalOr": "Or",
    "Maximum": "Max",
    "Minimum": "Min",
    "RealDiv": "Div",
    "Rint": "Round",
    "TruncateDiv": "Div",
}


@converts(*_ALIKE)
def _alike(op: Op, g: Builder) -> Converted:
    return g.node(_ALIKE[op.kind], *op.inputs)


@converts(
    *("CheckNumerics", "EnsureShape", "Identity", "PlaceholderWithDefault", "PreventGradient"),
    *("ReadVariableOp", "Snapshot", "StopGradient"),
)
def _same(op: Op, _: Builder) -> Converted:
    return op.inputs[0]


def _number(op: Op, value: float) -> np.ndarray:
    """Return a number of the dtype of the first input."""
    return np.array(value, op.inputs[0].dtype)


_EXPRESSIONS: dict[str, Convert] = {
    "Cast": lambda op, g: g.cast(op.inputs[0], op.dtype),
    "ClipByValue": lambda op, g: g.node(
        "Min", g.node("Max", op.inputs[0], op.inputs[1]), op.inputs[2]
    ),
    "Einsum": lambda op, g: g.node(
        "Einsum", *op.inputs, equation=op.attribute("equation").decode()
    ),
    "Erfc": lambda op, g: g.node("Sub", _number(op, 1), g.node("Erf", op.inputs[0])),
    "Expm1": lambda op, g: g.node("Sub", g.node("Exp", op.inputs[0]), _number(op, 1)),
    "IdentityN": lambda op, _: op.inputs,
    "InvertPermutation": lambda op, _: np.argsort(op.constant(0)),
    "IsFinite": lambda op, g: g.node(
        "Not", g.node("Or", g.node("IsNaN", op.inputs[0]), g.node("IsInf", op.inputs[0]))
    ),
    "LeakyRelu": lambda op, g: g.node("LeakyRelu", op.inputs[0], alpha=op.attribute("alpha")),
    "Log1p": lambda op, g: g.node("Log", g.node("Add", op.inputs[0], _number(op, 1))),
    "LogSoftmax": lambda op, g: g.node("LogSoftmax", op.inputs[0], axis=-1),
    "NotEqual": lambda op, g: g.node("Not", g.node("Equal", *op.inputs)),
    "Relu6": lambda op, g: g.node("Clip", op.inputs[0], _number(op, 0), _number(op, 6)),
    "Softmax": lambda op, g: g.node("Softmax", op.inputs[0], axis=-1),
    "Square": lambda op, g: g.node("Pow", op.inputs[0], _number(op, 2)),
}
CONVERTERS.update(_EXPRESSIONS)


@converts("BiasAdd")
def _bias_add(op: Op, g: Builder) -> Converted:
    if op.attribute("data_format") == b"NCHW":
        raise op.error("channels must come last")
    return g.node("Add", *op.inputs)


@converts("DivNoNan")
def _div_no_nan(op: Op, g: Builder) -> Converted:
    x, y = op.inputs
    zero = _number(op, 0)
    nothing = g.node("Equal", y, zero)
    return g.node(
        "Where", nothing, zero, g.node("Div", x, g.node("Where", nothing, _number(op, 1), y))
    )


@converts("FloorDiv")
def _floor_div(op: Op, g: Builder) -> Converted:
    x, y = op.inputs
    if np.issubdtype(op.dtype, np.floating):
        return g.node("Floor", g.node("Div", x, y))
    return g.node("Div", g.node("Sub", x, g.node("Mod", x, y)), y)  # Div alone rounds towards 0


@converts("FloorMod")
def _floor_mod(op: Op, g: Builder) -> Converted:
    x, y = op.inputs
    if np.issubdtype(op.dtype, np.floating):
        return g.node("Sub", x, g.node("Mul", g.node("Floor", g.node("Div", x, y)), y))
    return g.node("Mod", x, y)


@converts("Select", "SelectV2")
def _select(op: Op, g: Builder) -> Converted:
    if op.kind == "Select" and op.rank(0) not in (0, op.rank(1)):
        raise op.error("its condition must have as many axes as its values")
    condition, x, y = op.inputs
    return g.where(condition, x, y, op.dtype)


@converts("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _matmul(op: Op, g: Builder) -> Converted:
    factors: list[Input] = []
    names = ("transpose_a", "transpose_b") if op.kind == "MatMul" else ("adj_x", "adj_y")
    for index, name in enumerate(names):
        x, rank = op.inputs[index], op.rank(index)
        if op.attribute(name):
            x = g.node("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])
        factors.append(x)
    return g.node("MatMul", *factors)


@converts("Mul")
def _mul(op: Op, g: Builder) -> Converted:
    """Make a product with 1 / sqrt(x) a quotient, so that runtimes recognise and fuse normalisations."""
    for x, other in (op.inputs, op.inputs[::-1]):
        root = g.roots.get(other.name)
        if root is not None:
            return g.node("Div", x, root)
    return g.node("Mul", *op.inputs)


@converts("Rsqrt")
def _rsqrt(op: Op, g: Builder) -> Converted:
    root = g.node("Sqrt", op.inputs[0])
    found = g.node("Reciprocal", root)
    g.roots[found] = root
    return found


@converts("SquaredDifference")
def _squared_difference(op: Op, g: Builder) -> Converted:
    difference = g.node("Sub", *op.inputs)
    return g.node("Mul", difference, difference)


@converts("ZerosLike", "OnesLike")
def _like(op: Op, g: Builder) -> Converted:
    number: Any = np.array(op.kind == "OnesLike", op.dtype)
    return g.node("Expand", number, g.shape(op.inputs[0]))
