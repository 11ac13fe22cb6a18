"""Which function converts which operation of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from heed.export.errors import ExportError
from heed.export.onnx.builder import Builder, Shape, Value


@dataclass
class Op:
    """An operation of a TensorFlow graph, with what its inputs have become.

    Attributes:
        kind: as TensorFlow calls it: "MatMul".
        name: of the node, which begins with that of its layer.
        inputs: what it reads.
        dtypes: those of its outputs.
        shapes: theirs, as far as they are known.
        attribute: gives an attribute of it by name.
        converter: what converts the graph that it stands in.
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
        """That of its only output."""
        return self.dtypes[0]

    @property
    def shape(self) -> Shape:
        """That of its only output."""
        return self.shapes[0]

    def rank(self, index: int = 0) -> int:
        """The number of axes of an input.

        Raises:
            ExportError: if it is not known.
        """
        found = self.inputs[index].rank
        if found is None:
            raise self.refused("the number of axes of what it reads is not known")
        return found

    def constant(self, index: int) -> np.ndarray:
        """What an input holds.

        Raises:
            ExportError: if that depends on what the model is given.
        """
        found = self.inputs[index].constant
        if found is None:
            raise self.refused(f"its input {index} must be a constant")
        return found

    def axis(self, index: int, rank: int | None = None) -> int:
        """An axis that an input holds, counted from the first."""
        axis = int(self.constant(index))
        return axis + (self.rank() if rank is None else rank) if axis < 0 else axis

    def refused(self, reason: str) -> ExportError:
        """The error that says what cannot be had, and where."""
        return ExportError(f"ONNX: `{self.kind}` of `{self.name}` cannot be converted: {reason}")


# What an operation becomes: a name, a value or a constant (`Input`); of several outputs a list of them.
Converted = Any
_CONVERTERS: dict[str, Callable[[Op, Builder], Any]] = {}


def converts(*kinds: str) -> Callable[[Callable[[Op, Builder], Any]], Callable[[Op, Builder], Any]]:
    """Registers the function below for operations of these kinds: `function(op, builder)` gives what they become."""

    def registered(function: Callable[[Op, Builder], Any]) -> Callable[[Op, Builder], Any]:
        _CONVERTERS.update(dict.fromkeys(kinds, function))
        return function

    return registered


def converter_of(kind: str) -> Callable[[Op, Builder], Any] | None:
    """The function that converts operations of this kind, if there is one."""
    return _CONVERTERS.get(kind)


def kinds() -> set[str]:
    """All that can be converted, as TensorFlow calls them."""
    return set(_CONVERTERS)


def same(op: Op, _: Builder) -> Value:
    """What changes nothing."""
    return op.inputs[0]
