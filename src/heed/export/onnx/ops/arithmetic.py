"""Elementwise operations: arithmetic, comparisons, activations, dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from heed.export.onnx.builder import Builder
from heed.export.onnx.registry import Converted, Op, converts

# Operations that become one node with the same inputs.
_ALIKE = {
    "Abs": "Abs",
    "Acos": "Acos",
    "Asin": "Asin",
    "Atan": "Atan",
    "Add": "Add",
    "AddV2": "Add",
    "Ceil": "Ceil",
    "Cos": "Cos",
    "Cosh": "Cosh",
    "Equal": "Equal",
    "Erf": "Erf",
    "Exp": "Exp",
    "Floor": "Floor",
    "Greater": "Greater",
    "GreaterEqual": "GreaterOrEqual",
    "IsNan": "IsNaN",
    "IsInf": "IsInf",
    "Less": "Less",
    "LessEqual": "LessOrEqual",
    "Log": "Log",
    "LogicalAnd": "And",
    "LogicalNot": "Not",
    "LogicalOr": "Or",
    "Maximum": "Max",
    "Minimum": "Min",
    "Neg": "Neg",
    "Pow": "Pow",
    "RealDiv": "Div",
    "Reciprocal": "Reciprocal",
    "Relu": "Relu",
    "Rint": "Round",
    "Round": "Round",
    "Sigmoid": "Sigmoid",
    "Sign": "Sign",
    "Sin": "Sin",
    "Sinh": "Sinh",
    "Softplus": "Softplus",
    "Softsign": "Softsign",
    "Sqrt": "Sqrt",
    "Sub": "Sub",
    "Tan": "Tan",
    "Tanh": "Tanh",
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


@converts("IdentityN")
def _same_all(op: Op, _: Builder) -> Converted:
    return op.inputs if len(op.dtypes) != 1 else op.inputs[0]


def _number(op: Op, value: float) -> np.ndarray:
    """A number of the dtype of the first input."""
    return np.array(value, op.inputs[0].dtype)


@converts("AddN")
def _add_n(op: Op, g: Builder) -> Converted:
    return g.node("Sum", *op.inputs)


@converts("BiasAdd")
def _bias_add(op: Op, g: Builder) -> Converted:
    if op.attribute("data_format") == b"NCHW":
        raise op.error("channels must come last")
    return g.node("Add", *op.inputs)


@converts("Cast")
def _cast(op: Op, g: Builder) -> Converted:
    return g.cast(op.inputs[0], op.dtype)


@converts("ClipByValue")
def _clip(op: Op, g: Builder) -> Converted:
    x, low, high = op.inputs
    return g.node("Min", g.node("Max", x, low), high)


@converts("DivNoNan")
def _div_no_nan(op: Op, g: Builder) -> Converted:
    x, y = op.inputs
    zero = _number(op, 0)
    nothing = g.node("Equal", y, zero)
    return g.node(
        "Where", nothing, zero, g.node("Div", x, g.node("Where", nothing, _number(op, 1), y))
    )


@converts("Elu", "Selu")
def _elu(op: Op, g: Builder) -> Converted:
    return g.node(op.kind, op.inputs[0])


@converts("Erfc")
def _erfc(op: Op, g: Builder) -> Converted:
    return g.node("Sub", _number(op, 1), g.node("Erf", op.inputs[0]))


@converts("Expm1")
def _expm1(op: Op, g: Builder) -> Converted:
    return g.node("Sub", g.node("Exp", op.inputs[0]), _number(op, 1))


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


@converts("InvertPermutation")
def _invert(op: Op, g: Builder) -> Converted:
    return np.argsort(op.constant(0))


@converts("IsFinite")
def _is_finite(op: Op, g: Builder) -> Converted:
    x = op.inputs[0]
    return g.node("Not", g.node("Or", g.node("IsNaN", x), g.node("IsInf", x)))


@converts("LeakyRelu")
def _leaky_relu(op: Op, g: Builder) -> Converted:
    return g.node("LeakyRelu", op.inputs[0], alpha=op.attribute("alpha"))


@converts("Log1p")
def _log1p(op: Op, g: Builder) -> Converted:
    return g.node("Log", g.node("Add", op.inputs[0], _number(op, 1)))


@converts("LogSoftmax", "Softmax")
def _softmax(op: Op, g: Builder) -> Converted:
    return g.node(op.kind, op.inputs[0], axis=-1)


@converts("Select", "SelectV2")
def _select(op: Op, g: Builder) -> Converted:
    if op.kind == "Select" and op.rank(0) not in (0, op.rank(1)):
        raise op.error("its condition must have as many axes as what it chooses from")
    condition, x, y = op.inputs
    return g.where(condition, x, y, op.dtype)


@converts("Mul")
def _mul(op: Op, g: Builder) -> Converted:
    """Makes a product with 1 / sqrt(x) a quotient, so that runtimes recognise and fuse normalisations."""
    for x, other in (op.inputs, op.inputs[::-1]):
        root = g.roots.get(other.name)
        if root is not None:
            return g.node("Div", x, root)
    return g.node("Mul", *op.inputs)


@converts("NotEqual")
def _not_equal(op: Op, g: Builder) -> Converted:
    return g.node("Not", g.node("Equal", *op.inputs))


@converts("Relu6")
def _relu6(op: Op, g: Builder) -> Converted:
    return g.node("Clip", op.inputs[0], _number(op, 0), _number(op, 6))


@converts("Rsqrt")
def _rsqrt(op: Op, g: Builder) -> Converted:
    root = g.node("Sqrt", op.inputs[0])
    found = g.node("Reciprocal", root)
    g.roots[found] = root
    return found


@converts("Square")
def _square(op: Op, g: Builder) -> Converted:
    return g.node("Pow", op.inputs[0], _number(op, 2))


@converts("SquaredDifference")
def _squared_difference(op: Op, g: Builder) -> Converted:
    difference = g.node("Sub", *op.inputs)
    return g.node("Mul", difference, difference)


@converts("ZerosLike", "OnesLike")
def _like(op: Op, g: Builder) -> Converted:
    number: Any = np.array(op.kind == "OnesLike", op.dtype)
    return g.node("Expand", number, g.shape(op.inputs[0]))
