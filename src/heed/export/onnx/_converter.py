"""Converts a traced TensorFlow function to an ONNX model: calls are inlined, weights become initializers.

Only operations that the outputs depend on are converted, so assertions drop out. Operations on constants are computed
during the conversion.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tensorflow as tf

from heed import __version__
from heed.export.errors import ExportError, ExportOptionError
from heed.export.onnx import ops  # noqa: F401  (registers the converters)
from heed.export.onnx._graph import join_past, names_read, select_needed
from heed.export.onnx.builder import Builder, Shape, Value, dtype_of, element_type, shape_of, store
from heed.export.onnx.registry import CONVERTERS, Op
from heed.number_checks import integer

_OPSETS = range(17, 25)
# Constants of this many numbers and more are computed when the file is run.
_FOLDED = 1 << 16
# Operations that change the model's variables, which ONNX cannot.
_WRITES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")


def convert(
    function: Any,
    *,
    opset: int = 23,
    halved: bool = False,
    name: str = "serve",
    beside: Path | None = None,
    external_above: int = 0,
) -> onnx.ModelProto:
    """Return a traced function as an ONNX model.

    Args:
        function: a `ConcreteFunction` of tensors by name, which returns a dictionary of tensors.
        opset, external_above: see `heed.export.onnx.write`.
        halved: whether to store weights of float32 as float16.
        name: the graph's name.
        beside: the file for weights of more than `external_above` bytes together, or None.
    """
    if integer(opset) not in _OPSETS:
        raise ExportOptionError(
            f"`opset` must be from {_OPSETS[0]} to {_OPSETS[-1]}. Received: opset={opset!r}"
        )
    builder = Builder(opset, halved)
    names = sorted(function.structured_input_signature[1])
    graph = function.graph
    variables = {variable.handle.ref(): variable for variable in graph.variables}
    weights = {
        handle: Value(
            dtype_of(variable),
            tuple(variable.shape),
            builder.weight(variable.name.split(":")[0], variable.numpy()),
        )
        for handle, variable in variables.items()
    }
    known: dict[str, Any] = {}
    inputs = []
    for wish, tensor in zip(names, graph.inputs, strict=False):
        if tensor.dtype == tf.string:
            raise ExportError(f"ONNX: the input `{wish}` is text; give the model ids")
        value = Value(dtype_of(tensor), shape_of(tensor), builder.unique(wish))
        known[tensor.name] = value
        inputs.append(_describe(value, wish))
    output_names = [
        # Names in a graph are unique, and a state is both an input and an output.
        builder.unique(f"next_{wish}" if wish in names else wish)
        for wish in sorted(function.structured_outputs)
    ]
    for outside, inside in graph.captures:
        if outside.dtype != tf.resource:
            array = np.asarray(outside)
            known[inside.name] = Value(array.dtype, array.shape, "", array)
        elif outside.ref() in weights:
            known[inside.name] = weights[outside.ref()]
    converter = Converter(builder)
    results = converter.graph(graph, known, graph.outputs)
    outputs = []
    for own, value, tensor in zip(output_names, results, graph.outputs, strict=True):
        builder.nodes.append(
            onnx.helper.make_node("Identity", [builder.input(value)], [own], name=f"output/{own}")
        )
        outputs.append(_describe(Value(dtype_of(tensor), shape_of(tensor), own), own))
    nodes = select_needed(builder.all_nodes, output_names)
    nodes = join_past(nodes, {x.name for x in inputs}, builder.unique)
    used = {name for node in nodes for name in names_read(node)}
    proto = onnx.helper.make_graph(
        nodes,
        name,
        inputs,
        outputs,
        store({n: x for n, x in builder.initializers.items() if n in used}, beside, external_above),
    )
    opsets = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(
        proto,
        opset_imports=opsets,
        ir_version=onnx.helper.find_min_ir_version_for(opsets),
        producer_name="heed",
        producer_version=__version__,
    )


class Converter:
    """Converts graphs and the functions that they call to the nodes of a builder."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder

    def graph(self, graph: Any, known: Mapping[str, Any], wanted: Any) -> list[Value]:
        """Return the values of the tensors `wanted` of a graph; `known` has values of its tensors by name."""
        for operation in graph.get_operations():
            if operation.type in _WRITES:  # also if nothing reads it
                raise ExportError(
                    f"ONNX: `{operation.type}` of `{operation.name}` cannot be converted: "
                    "it changes a variable, which an ONNX file cannot"
                )
        values = dict(known)
        for operation in _needed(wanted, values):
            values.update(self._operation(operation, values))
        return [values[tensor.name] for tensor in wanted]

    def call(self, graph: Any, inputs: list[Any]) -> list[Value]:
        """Return the outputs of a function's graph for these inputs, inlined."""
        known = {tensor.name: x for tensor, x in zip(graph.inputs, inputs, strict=True)}
        return self.graph(graph, known, graph.outputs)

    def function(self, operation: Any, attribute: str) -> Any:
        """Return the function named by an attribute of an operation, a TensorFlow `AtomicFunction`."""
        return operation.graph._get_function(operation.get_attr(attribute).name)

    def _operation(self, operation: Any, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the names of its outputs, with their values."""
        op = Op(operation, [values.get(x.name) for x in operation.inputs], self)
        if reason := _unsupported_reason(op):
            raise op.error(reason)
        found = _fold(op)
        if found is None:
            self._builder.place = op.name
            found = CONVERTERS[op.kind](op, self._builder)
        results = found if isinstance(found, list) else [found]
        for tensor, dtype, shape, result in zip(
            operation.outputs, op.dtypes, op.shapes, results, strict=True
        ):
            yield tensor.name, _value(result, dtype, shape)


def _value(result: Any, dtype: Any, shape: Shape) -> Any:
    if isinstance(result, Value):
        # Either side may know more sizes of an unchanged tensor.
        if result.shape is None or (shape is not None and None in result.shape):
            return dataclasses.replace(result, shape=_merge(result.shape, shape))
        return result
    if isinstance(result, np.ndarray):
        array = np.asarray(result, dtype)
        return Value(dtype, array.shape, "", array)
    return Value(dtype, shape, result)


def _merge(one: Shape, other: Shape) -> Shape:
    if one is None or other is None or len(one) != len(other):
        return other if one is None else one
    return tuple(b if a is None else a for a, b in zip(one, other, strict=True))


def _needed(wanted: Any, known: Mapping[str, Any]) -> list[Any]:
    """Return the operations that the tensors `wanted` depend on, in order."""
    found: dict[Any, Any] = {}
    left = [(tensor.op, False) for tensor in reversed(wanted) if tensor.name not in known]
    while left:
        operation, ready = left.pop()
        if operation.name in found:
            continue
        if ready:
            found[operation.name] = operation
            continue
        left.append((operation, True))
        left += [
            (x.op, False)
            for x in reversed(operation.inputs)
            if x.name not in known and x.op.name not in found
        ]
    return list(found.values())


def _fold(op: Op) -> Any:
    """Return the outputs of an operation on constants; None if it has other inputs or is large."""
    if op.kind == "Const":
        return tf.make_ndarray(op.attribute("value"))
    function: Any = getattr(tf.raw_ops, op.kind, None)
    if function is None or op.source.op_def.is_stateful or not all(map(_small, op.shapes)):
        return None
    arguments = _constants(op, function)
    if not arguments:
        return None
    with tf.init_scope():
        found = function(**arguments)
    several = isinstance(found, (list, tuple))
    return [np.asarray(x) for x in found] if several else np.asarray(found)


def _constants(op: Op, function: Any) -> dict[str, Any]:
    """Return the arguments of TensorFlow's function for an operation on constants; none for any other."""
    if not all(isinstance(x, Value) and x.constant is not None for x in op.inputs):
        return {}
    names = [name for name in inspect.signature(function).parameters if name != "name"]
    given = iter(op.inputs)
    found: dict[str, Any] = {}
    for place, argument in enumerate(op.source.op_def.input_arg):
        # Some have another name in Python, in the same place.
        name = argument.name if argument.name in names else names[place]
        if argument.type_list_attr:
            return {}
        count = op.attribute(argument.number_attr) if argument.number_attr else 1
        values = [tf.constant(next(given).constant) for _ in range(count)]
        found[name] = values if argument.number_attr else values[0]
    attributes = (name for name in names if name not in found)
    return {**found, **{name: op.attribute(name) for name in attributes}} if found else {}


def _small(shape: Shape) -> bool:
    return shape is not None and math.prod(_FOLDED if n is None else n for n in shape) < _FOLDED


def _unsupported_reason(op: Op) -> str:
    """Return why an operation cannot be converted; "" if it can."""
    if op.kind.startswith("Heed"):
        return "it is native; trace the model with the exportable implementation"
    if op.kind.startswith("TensorList"):
        return "lists of tensors stay in TensorFlow; SavedModel has them"
    if op.kind == "Placeholder" or any(x is None for x in op.inputs):
        return "it reads a table or another resource of TensorFlow; SavedModel has them"
    if tf.string in (x.dtype for x in (*op.source.inputs, *op.source.outputs)):
        return "it works on text; give the model ids"
    if tf.bfloat16 in (x.dtype for x in op.source.outputs):
        return "onnxruntime has no bfloat16; export a float32 or mixed_float16 model"
    if op.kind != "Const" and op.kind not in CONVERTERS:
        return "heed has no ONNX form of this operation; SavedModel takes every layer"
    return ""


def _describe(value: Value, name: str) -> onnx.ValueInfoProto:
    """Return an input or output of the graph; each dynamic size has its own name."""
    if value.shape is None:
        raise ExportError(f"ONNX: the number of axes of `{name}` must be known")
    shape = [f"{name}_{i}" if n is None else n for i, n in enumerate(value.shape)]
    return onnx.helper.make_tensor_value_info(value.name, element_type(value.dtype), shape)
