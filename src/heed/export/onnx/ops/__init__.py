"""Converters of TensorFlow's operations, a file for each family."""

from heed.export.onnx.ops import (
    _arithmetic,
    _control_flow,
    _convolutions,
    _indexing,
    _products,
    _reductions,
    _shapes,
    attention,
)

__all__ = [
    "_arithmetic",
    "_control_flow",
    "_convolutions",
    "_indexing",
    "_products",
    "_reductions",
    "_shapes",
    "attention",
]
