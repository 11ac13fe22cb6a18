"""Calls, conditions and loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from heed.export.onnx.builder import Builder, Value, element_type, shape_of
from heed.export.onnx.ops.attention import attend
from heed.export.onnx.registry import Converted, Op, converts


@converts("PartitionedCall", "StatefulPartitionedCall")
def _call(op: Op, g: Builder) -> Converted:
    attention = attend(op, g)
    if attention is not None:
        return attention
    return op.converter.call(op.converter.function(op.source, "f").graph, op.inputs)


@converts("If", "StatelessIf")
def _if(op: Op, g: Builder) -> Converted:
    condition, *inputs = op.inputs
    if condition.constant is not None:
        branch = "then_branch" if condition.constant else "else_branch"
        return op.converter.call(op.converter.function(op.source, branch).graph, inputs)
    place = g.place
    branches = {}
    for name in ("then_branch", "else_branch"):
        with g.inner() as nodes:
            results = op.converter.call(op.converter.function(op.source, name).graph, inputs)
            outputs = [_output(g, x, x.dtype, x.shape) for x in results]
        branches[name] = onnx.helper.make_graph(nodes, name, [], outputs)
    g.place = place
    return g.node("If", g.cast(condition, bool), outputs=len(op.dtypes), **branches)


@converts("While", "StatelessWhile")
def _while(op: Op, g: Builder) -> Converted:
    """Return ONNX's Loop, which carries only changing values; its body reads the rest from outside."""
    body = op.converter.function(op.source, "body").graph
    condition = op.converter.function(op.source, "cond").graph
    pairs = zip(body.inputs, body.outputs, strict=True)
    carried = [i for i, (given, result) in enumerate(pairs) if not _is_unchanged(given, result)]
    place = g.place
    first = g.cast(op.converter.call(condition, op.inputs)[0], bool)
    with g.inner() as nodes:
        g.place = f"{place}/body"
        inputs = [
            onnx.helper.make_tensor_value_info(g.unique("iteration"), onnx.TensorProto.INT64, []),
            onnx.helper.make_tensor_value_info(g.unique("going"), onnx.TensorProto.BOOL, []),
        ]
        known: list[Any] = list(op.inputs)
        for i in carried:
            given = op.inputs[i]
            shape = shape_of(body.inputs[i])
            known[i] = Value(given.dtype, shape, g.unique(f"{place}/carried_{i}"))
            inputs.append(
                onnx.helper.make_tensor_value_info(known[i].name, element_type(given.dtype), shape)
            )
        after = op.converter.call(body, known)
        g.place = f"{place}/condition"
        whole = [after[i] if i in carried else known[i] for i in range(len(known))]
        going = op.converter.call(condition, whole)[0]
        outputs = [_output(g, going, np.dtype(bool), ())]
        outputs += [
            _output(g, after[i], op.inputs[i].dtype, shape_of(body.inputs[i])) for i in carried
        ]
    g.place = place
    graph = onnx.helper.make_graph(nodes, "body", inputs, outputs)
    found: Any = []
    if carried:
        found = g.node(
            "Loop", None, first, *(op.inputs[i] for i in carried), outputs=len(carried), body=graph
        )
        found = [found] if len(carried) == 1 else found
    results: list[Any] = list(op.inputs)
    for i, name in zip(carried, found, strict=True):
        results[i] = name
    return results


def _is_unchanged(given: Any, result: Any) -> bool:
    """Return whether an output of a graph is its input `given`."""
    while result is not given and result.op.type == "Identity":
        result = result.op.inputs[0]
    return result is given


def _output(g: Builder, x: Any, dtype: Any, shape: Any) -> onnx.ValueInfoProto:
    """Add an output of an inner graph, which needs its own node."""
    name = g.unique(f"{g.place}/output")
    g.nodes.append(onnx.helper.make_node("Identity", [g.input(x)], [name], name=name))
    return onnx.helper.make_tensor_value_info(name, element_type(dtype), shape)
