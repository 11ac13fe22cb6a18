"""Converters of TensorFlow's operations, a file for each family; importing them registers them."""

from heed.export.onnx.ops import (  # noqa: F401
    _arithmetic,
    _control_flow,
    _convolutions,
    _indexing,
    _reductions,
    _shapes,
)
