"""The registry of functions that convert TensorFlow's operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from heed.export.errors import ExportError
from heed.export.onnx.builder import Builder, Shape, dtype_of, shape_of


class Op:
    """An operation `source` of a TensorFlow graph, with its inputs in ONNX and the converter of its graph."""

    def __init__(self, source: Any, inputs: list[Any], converter: Any) -> None:
        self.source, self.inputs, self.converter = source, inputs, converter
        self.kind: str = source.type  # as "MatMul"
        self.name: str = source.name  # begins with the name of its layer
        self.attribute: Callable[[str], Any] = source.get_attr
        self.dtypes = [dtype_of(x) for x in source.outputs]
        self.shapes: list[Shape] = [shape_of(x) for x in source.outputs]

    @property
    def dtype(self) -> np.dtype:
        """The dtype of its only output."""
        return self.dtypes[0]

    @property
    def shape(self) -> Shape:
        """The shape of its only output."""
        return self.shapes[0]

    def rank(self, index: int = 0) -> int:
        """Return the number of axes of an input; raise an error if it is not known."""
        found = self.inputs[index].rank
        if found is None:
            raise self.error("the number of axes of its input is not known")
        return found

    def constant(self, index: int) -> np.ndarray:
        """Return the numbers of a constant input; raise an error if it depends on the model's inputs."""
        found = self.inputs[index].constant
        if found is None:
            raise self.error(f"its input {index} must be a constant")
        return found

    def axis(self, index: int, rank: int | None = None) -> int:
        """Return the axis in a constant input, not negative."""
        axis = int(self.constant(index))
        return axis + (self.rank() if rank is None else rank) if axis < 0 else axis

    def error(self, reason: str) -> ExportError:
        """Return the error that names the operation and the reason."""
        return ExportError(f"ONNX: `{self.kind}` of `{self.name}` cannot be converted: {reason}")


# The outputs of a converted operation: a name, a value or a constant (`Input`), or a list of several.
Converted = Any
Convert = Callable[[Op, Builder], Converted]
CONVERTERS: dict[str, Convert] = {}  # by kind of operation


def converts(*kinds: str) -> Callable[[Convert], Convert]:
    """Register the decorated function for these kinds."""

    def decorate(function: Convert) -> Convert:
        CONVERTERS.update(dict.fromkeys(kinds, function))
        return function

    return decorate
