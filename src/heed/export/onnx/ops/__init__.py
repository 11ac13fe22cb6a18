"""Converters of TensorFlow's operations, a file for each family."""

from heed.export.onnx.ops import (
    arithmetic,
    attention,
    control_flow,
    convolutions,
    indexing,
    products,
    reductions,
    shapes,
)

__all__ = [
    "arithmetic",
    "attention",
    "control_flow",
    "convolutions",
    "indexing",
    "products",
    "reductions",
    "shapes",
]
