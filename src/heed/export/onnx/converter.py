"""From a traced TensorFlow function to an ONNX model: calls are put in line, weights become initializers.

What a graph gives is followed back to what it reads, so that checks, which nothing reads, drop out. Operations of
constants alone are done at once.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tensorflow as tf

from heed import __version__
from heed._numbers import integer
from heed.export.errors import ExportError
from heed.export.onnx import ops  # noqa: F401  (registers what converts each operation)
from heed.export.onnx.builder import Builder, Shape, Value, element_type
from heed.export.onnx.past import join_past
from heed.export.onnx.reading import names_read, read_ones
from heed.export.onnx.registry import Op, converter_of
from heed.export.onnx.storage import stored

# The versions of ONNX' operators that are written.
OPSETS = range(17, 25)
# Before the name of an output whose own name is that of an input.
NEXT = "next_"
# Numbers from that many on are worked out where the file is run.
_FOLDED = 1 << 16
# What changes the model's state, which a file of weights cannot.
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
    """A traced function as an ONNX model.

    Args:
        function: a `ConcreteFunction` that was traced with tensors by name and gives a dictionary of tensors.
        opset: the version of ONNX' operators, 17 to 24; from 23 on each marked attention is one `Attention`.
        halved: whether weights of float32 are stored as float16; what is computed stays float32.
        name: of the graph.
        beside: the file for weights of more than `external_above` bytes, or None; a graph's own ends at 2 GB.
        external_above: see `beside`.

    Raises:
        ExportError: for an operation that cannot be converted; it names the operation and its layer.
    """
    if integer(opset) not in OPSETS:
        raise ExportError(
            f"`opset` must be from {OPSETS[0]} to {OPSETS[-1]}. Received: opset={opset!r}"
        )
    builder = Builder(opset, halved)
    names = sorted(function.structured_input_signature[1])
    graph = function.graph
    weights = {
        variable.handle.ref(): Value(
            _dtype(variable.dtype),
            tuple(variable.shape),
            builder.weight(_plain(variable.name), variable.numpy()),
        )
        for variable in _in_order(graph.variables)
    }
    known: dict[str, Any] = {}
    inputs = []
    for wish, tensor in zip(names, graph.inputs, strict=False):
        if tensor.dtype == tf.string:
            raise ExportError(f"ONNX: the input `{wish}` is text; give the model ids")
        value = Value(_dtype(tensor.dtype), _shape(tensor), builder.unique(wish))
        known[tensor.name] = value
        inputs.append(_described(value, wish))
    results_named = [
        # Inputs and outputs of a graph share their names: a state that goes in comes out as the next one.
        builder.unique(f"{NEXT}{wish}" if wish in names else wish)
        for wish in sorted(function.structured_outputs)
    ]
    for outside, inside in graph.captures:
        if outside.dtype != tf.resource:
            known[inside.name] = _captured(outside)
        elif outside.ref() in weights:
            known[inside.name] = weights[outside.ref()]
    converter = Converter(builder)
    results = converter.graph(graph, known, graph.outputs)
    outputs = []
    for own, value, tensor in zip(results_named, results, graph.outputs, strict=True):
        builder.nodes.append(
            onnx.helper.make_node("Identity", [builder.input(value)], [own], name=f"output/{own}")
        )
        outputs.append(_described(Value(_dtype(tensor.dtype), _shape(tensor), own), own))
    nodes = read_ones(builder.all_nodes, results_named)
    nodes = join_past(nodes, {x.name for x in inputs}, builder.unique)
    used = {given for node in nodes for given in names_read(node)}
    proto = onnx.helper.make_graph(
        nodes,
        name,
        inputs,
        outputs,
        stored(
            {n: x for n, x in builder.initializers.items() if n in used}, beside, external_above
        ),
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
    """Converts graphs, each inside of what was converted before.

    Args:
        builder: collects what comes out.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder = builder

    def graph(self, graph: Any, known: Mapping[str, Any], wanted: Any) -> list[Value]:
        """Values of the tensors `wanted` of a graph, of whose tensors those in `known` are known by name."""
        for operation in graph.get_operations():
            if operation.type in _WRITES:  # whether or not something reads it
                raise ExportError(
                    f"ONNX: `{operation.type}` of `{operation.name}` cannot be converted: "
                    "it changes a variable, which an ONNX file cannot"
                )
        values = dict(known)
        for operation in _needed(wanted, values):
            values.update(self._operation(operation, values))
        return [values[tensor.name] for tensor in wanted]

    def call(self, graph: Any, inputs: list[Any]) -> list[Value]:
        """What the graph of a function gives for these inputs, put in line."""
        known = {tensor.name: x for tensor, x in zip(graph.inputs, inputs, strict=True)}
        return self.graph(graph, known, graph.outputs)

    def function(self, operation: Any, attribute: str) -> Any:
        """The function that an attribute of an operation names, a TensorFlow `AtomicFunction`."""
        return operation.graph._get_function(operation.get_attr(attribute).name)

    def _operation(self, operation: Any, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """The names of its outputs, with what they are."""
        op = Op(
            operation.type,
            operation.name,
            [values.get(x.name) for x in operation.inputs],
            [_dtype(x.dtype) for x in operation.outputs],
            [_shape(x) for x in operation.outputs],
            operation.get_attr,
            self,
            operation,
        )
        if reason := _unknown(op):
            raise op.refused(reason)
        found = _worked_out(op)
        if found is None:
            convert: Any = converter_of(op.kind)
            self._builder.place = op.name
            found = convert(op, self._builder)
        results = found if isinstance(found, list) and len(op.dtypes) != 1 else [found]
        for tensor, dtype, shape, result in zip(
            operation.outputs, op.dtypes, op.shapes, results, strict=True
        ):
            yield tensor.name, _value(result, dtype, shape)


def _value(result: Any, dtype: Any, shape: Shape) -> Any:
    if isinstance(result, Value):
        # What passes through may be known better on either side.
        if result.shape is None or (shape is not None and None in result.shape):
            shape = _merged(result.shape, shape)
            return Value(result.dtype, shape, result.name, result.constant)
        return result
    if isinstance(result, np.ndarray):
        array = np.asarray(result, dtype)
        return Value(dtype, array.shape, "", array)
    return Value(dtype, shape, result)


def _merged(one: Shape, other: Shape) -> Shape:
    if one is None or other is None or len(one) != len(other):
        return other if one is None else one
    return tuple(b if a is None else a for a, b in zip(one, other, strict=True))


def _needed(wanted: Any, known: Mapping[str, Any]) -> list[Any]:
    """The operations that the tensors `wanted` are made by, each after what it reads."""
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


def _worked_out(op: Op) -> Any:
    """What TensorFlow makes of constants alone; None where there is anything else, or where it is large."""
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
    """The arguments of TensorFlow's function for an operation of constants; none for any other."""
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
        if argument.number_attr:
            count = op.attribute(argument.number_attr)
            found[name] = [tf.constant(next(given).constant) for _ in range(count)]
        else:
            found[name] = tf.constant(next(given).constant)
    attributes = (name for name in names if name not in found)
    return {**found, **{name: op.attribute(name) for name in attributes}} if found else {}


def _small(shape: Shape) -> bool:
    """Whether a tensor of that shape may stand in a file as a constant."""
    return shape is not None and math.prod(_FOLDED if n is None else n for n in shape) < _FOLDED


def _unknown(op: Op) -> str:
    """Why an operation cannot be converted, or nothing."""
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
    if op.kind != "Const" and converter_of(op.kind) is None:
        return "heed has no ONNX form of this operation; SavedModel takes every layer"
    return ""


def _in_order(variables: Any) -> list[Any]:
    """Each variable once."""
    return list({variable.handle.ref(): variable for variable in variables}.values())


def _captured(tensor: Any) -> Value:
    array = np.asarray(tensor)
    return Value(array.dtype, array.shape, "", array)


def _dtype(dtype: Any) -> Any:
    """NumPy's; of what is no tensor of numbers, an object."""
    return (
        np.dtype(object)
        if dtype in (tf.resource, tf.variant, tf.string)
        else np.dtype(dtype.as_numpy_dtype)
    )


def _shape(tensor: Any) -> Shape:
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def _plain(name: str) -> str:
    return name.split(":")[0]


def _described(value: Value, name: str) -> onnx.ValueInfoProto:
    """An input or output; what varies has a name of its own."""
    if value.shape is None:
        raise ExportError(f"ONNX: the number of axes of `{name}` must be known")
    shape = [f"{name}_{i}" if n is None else n for i, n in enumerate(value.shape)]
    return onnx.helper.make_tensor_value_info(value.name, element_type(value.dtype), shape)
