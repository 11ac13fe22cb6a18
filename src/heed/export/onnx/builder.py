"""Builds an ONNX graph: nodes, constants and names; stores its numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tensorflow as tf

# The known sizes, None for others; None for an unknown rank.
Shape = tuple[int | None, ...] | None

# Smaller weights are never stored as float16.
_LEAST_HALVED = 16
# Smaller tensors, such as shapes, stay in the graph's file, where checks read them.
_LEAST_BESIDE = 1024


@dataclass(eq=False)
class Value:
    """A tensor."""

    dtype: np.dtype
    shape: Shape
    name: str = ""  # in the ONNX graph; "" for a constant that is not used yet
    constant: np.ndarray | None = None  # its numbers, if they are known and few

    @property
    def rank(self) -> int | None:
        """The number of axes."""
        return None if self.shape is None else len(self.shape)


# An input of a node: a value, the name of another node's output, numbers (a list holds int64), or nothing.
Input = Value | str | np.ndarray | Sequence[int] | None


class Builder:
    """Collects the nodes of a graph and of its inner graphs; if `halved`, weights of float32 are stored as float16."""

    def __init__(self, opset: int, halved: bool) -> None:
        self.opset, self.halved = opset, halved
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, np.ndarray] = {}
        self.roots: dict[str, str] = {}  # square roots, by the names of their reciprocals
        self.place = ""  # the name of the TensorFlow operation that is being converted
        self._main = self.nodes
        self._names: dict[str, int] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._casts: dict[str, tuple[str, np.dtype]] = {}
        self._made: dict[Any, Any] = {}  # outputs of nodes, by operation and inputs
        self._stored: list[onnx.NodeProto] = []

    def unique(self, wish: str) -> str:
        """Return a new name, `wish` if that is free."""
        count = self._names.get(wish, 0)
        self._names[wish] = count + 1
        return self.unique(f"{wish}_{count}") if count else wish

    def node(self, kind: str, *inputs: Input, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node of operator `kind`; return the name of its output, or a list of several.

        A node that exists already is not added again.
        """
        given = [self.input(x) for x in inputs]
        attributes = {key: value for key, value in attributes.items() if value is not None}
        made = (kind, *given, outputs, repr(sorted(attributes.items())))
        if made in self._made:
            return self._made[made]
        name = self.unique(f"{self.place}/{kind}" if self.place else kind)
        found = [name if outputs == 1 else f"{name}:{i}" for i in range(outputs)]
        self.nodes.append(onnx.helper.make_node(kind, given, found, name=name, **attributes))
        self._made[made] = found[0] if outputs == 1 else found
        return self._made[made]

    def input(self, x: Input) -> str:
        """Return the name of a tensor; store a constant."""
        if x is None or isinstance(x, str):
            return x or ""
        if not isinstance(x, Value):
            return self._constant(np.asarray(x, None if isinstance(x, np.ndarray) else np.int64))
        if not x.name and x.constant is not None:
            x.name = self._constant(x.constant)
        return x.name

    def _constant(self, array: np.ndarray) -> str:
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.weight("constant", array)
        return self._constants[key]

    def weight(self, wish: str, array: np.ndarray) -> str:
        """Store numbers in the graph; return their name."""
        name = self.unique(wish)
        large = array.dtype == np.float32 and array.size >= _LEAST_HALVED
        if not (self.halved and large and np.all(np.abs(array) <= np.finfo(np.float16).max)):
            self.initializers[name] = array
            return name
        stored = f"{name}:half"
        self.initializers[stored] = array.astype(np.float16)
        widen = onnx.helper.make_node(
            "Cast", [stored], [name], name=name, to=onnx.TensorProto.FLOAT
        )
        self._stored.append(widen)
        return name

    @property
    def all_nodes(self) -> list[onnx.NodeProto]:
        """The nodes of the outer graph, in order."""
        return [*self._stored, *self._main]

    @contextlib.contextmanager
    def inner(self) -> Iterator[list[onnx.NodeProto]]:
        """Collect nodes in an inner graph, which can read all values of the graphs around it."""
        outer, self.nodes = self.nodes, []
        casts, self._casts = self._casts, dict(self._casts)
        made, self._made = self._made, dict(self._made)
        try:
            yield self.nodes
        finally:
            self.nodes, self._casts, self._made = outer, casts, made

    def cast(self, x: Input, dtype: Any) -> Input:
        """Return `x` in another dtype; undo an earlier `narrow`."""
        dtype = np.dtype(dtype)
        if isinstance(x, Value):
            if x.dtype == dtype:
                return x
            if x.constant is not None:
                return x.constant.astype(dtype)
        if isinstance(x, np.ndarray):
            return x.astype(dtype)
        name = self.input(x)
        before, was = self._casts.get(name, ("", None))
        if was == dtype:
            return before
        return self.node("Cast", name, to=element_type(dtype))

    def narrow(self, name: str, dtype: Any) -> str:
        """Return an int64 of ONNX in TensorFlow's dtype, int32 or int64; `cast` finds the int64 again."""
        if np.dtype(dtype) == np.int64:
            return name
        result = self.node("Cast", name, to=element_type(dtype))
        self._casts[result] = (name, np.dtype(np.int64))
        return result

    def where(self, condition: Input, x: Input, y: Input, dtype: Any) -> str:
        """Return `x` where `condition`, else `y`; onnxruntime has no Where of booleans."""
        if np.dtype(dtype) != bool:
            return self.node("Where", condition, x, y)
        otherwise = self.node("And", self.node("Not", condition), y)
        return self.node("Or", self.node("And", condition, x), otherwise)

    def reduce(self, kind: str, x: Input, axes: Sequence[int], keep: bool) -> str:
        """Add ReduceSum, ReduceMean, ...; before opset 18, axes are an attribute of all but ReduceSum."""
        if kind == "ReduceSum" or self.opset >= 18:
            return self.node(kind, x, list(axes), keepdims=int(keep), noop_with_empty_axes=1)
        if not axes:
            return self.input(x)
        return self.node(kind, x, axes=list(axes), keepdims=int(keep))

    def shape(self, x: Input, start: int | None = None, end: int | None = None) -> Input:
        """Return the sizes of the axes from `start` to before `end`, (count,) int64."""
        if isinstance(x, Value) and x.shape is not None:
            part = x.shape[start:end]
            if None not in part:
                return np.array(part, np.int64)
        return self.node("Shape", x, start=start, end=end)

    def concat(self, parts: Sequence[Input], axis: int = 0) -> Input:
        """Join the parts; constants at once."""
        if len(parts) == 1:
            return parts[0]
        if all(isinstance(x, np.ndarray) for x in parts):
            return np.concatenate(parts, axis)  # type: ignore[arg-type]
        return self.node("Concat", *parts, axis=axis)


def dtype_of(tensor: Any) -> Any:
    """Return NumPy's dtype of a TensorFlow tensor; object if it holds no numbers."""
    if tensor.dtype in (tf.resource, tf.variant, tf.string):
        return np.dtype(object)
    return np.dtype(tensor.dtype.as_numpy_dtype)


def shape_of(tensor: Any) -> Shape:
    """Return the shape of a TensorFlow tensor."""
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def element_type(dtype: Any) -> int:
    """Return ONNX's number for a dtype."""
    return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def store(
    arrays: Mapping[str, np.ndarray], beside: Path | None, above: int
) -> list[onnx.TensorProto]:
    """Return the arrays as tensors of a graph; large ones are in the file `beside` if all have over `above` bytes."""
    if beside is None or sum(array.nbytes for array in arrays.values()) <= above:
        return [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    found = []
    with beside.open("wb") as file:
        for name, array in arrays.items():
            if array.nbytes < _LEAST_BESIDE:
                found.append(onnx.numpy_helper.from_array(array, name))
                continue
            entries = {"location": beside.name, "offset": file.tell(), "length": array.nbytes}
            array.astype(array.dtype.newbyteorder("<"), copy=False).tofile(file)
            found.append(
                onnx.TensorProto(
                    name=name,
                    dims=array.shape,
                    data_type=element_type(array.dtype),
                    data_location=onnx.TensorProto.EXTERNAL,
                    external_data=[
                        onnx.StringStringEntryProto(key=key, value=str(value))
                        for key, value in entries.items()
                    ],
                )
            )
    return found
