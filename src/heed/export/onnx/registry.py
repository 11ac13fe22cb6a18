"""The registry of functions that convert TensorFlow's operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from heed.export.errors import ExportError
from heed.export.onnx.builder import Builder, Shape


@dataclass
class Op:
    """An operation of a TensorFlow graph, with its inputs in ONNX.

    Attributes:
        kind: its type in TensorFlow, as "MatMul".
        name: its name, which begins with that of its layer.
        inputs: its inputs.
        dtypes: the dtypes of its outputs.
        shapes: the shapes of its outputs, as far as they are known.
        attribute: a function that returns an attribute by name.
        converter: the converter of its graph.
        source: the operation itself.
    """

    kind: str
    name: str
    inputs: list[Any]
    dtypes: list[Any]
    shapes: list[Shape]
    attribute: Callable[[str], Any]
    converter: Any
    source: Any

    @property
    def dtype(self) -> np.dtype:
        """The dtype of its only output."""
        return self.dtypes[0]

    @property
    def shape(self) -> Shape:
        """The shape of its only output."""
        return self.shapes[0]

    def rank(self, index: int = 0) -> int:
        """The number of axes of an input.

        Raises:
            ExportError: if it is not known.
        """
        found = self.inputs[index].rank
        if found is None:
            raise self.error("the number of axes of what it reads is not known")
        return found

    def constant(self, index: int) -> np.ndarray:
        """The numbers of a constant input.

        Raises:
            ExportError: if the input depends on the model's inputs.
        """
        found = self.inputs[index].constant
        if found is None:
            raise self.error(f"its input {index} must be a constant")
        return found

    def axis(self, index: int, rank: int | None = None) -> int:
        """The axis in a constant input, not negative."""
        axis = int(self.constant(index))
        return axis + (self.rank() if rank is None else rank) if axis < 0 else axis

    def error(self, reason: str) -> ExportError:
        """The error that names the operation and the reason."""
        return ExportError(f"ONNX: `{self.kind}` of `{self.name}` cannot be converted: {reason}")


# The outputs of a converted operation: a name, a value or a constant (`Input`), or a list of several.
Converted = Any
_CONVERTERS: dict[str, Callable[[Op, Builder], Any]] = {}


def converts(*kinds: str) -> Callable[[Callable[[Op, Builder], Any]], Callable[[Op, Builder], Any]]:
    """Registers a function `function(op, builder)`, which returns the converted outputs, for these kinds."""

    def register(function: Callable[[Op, Builder], Any]) -> Callable[[Op, Builder], Any]:
        _CONVERTERS.update(dict.fromkeys(kinds, function))
        return function

    return register


def converter_of(kind: str) -> Callable[[Op, Builder], Any] | None:
    """The function that converts operations of this kind, if there is one."""
    return _CONVERTERS.get(kind)


def kinds() -> set[str]:
    """The kinds of operations that can be converted."""
    return set(_CONVERTERS)
