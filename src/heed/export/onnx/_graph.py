"""Finishes the nodes of an ONNX graph: leaves out those that nothing reads, and lets `Attention` join keys and values.

A step of decoding appends new keys and values to the past ones, (B, P, K, H), and attends to all of them. The operator
does both: it takes past and new ones as separate inputs, and returns them joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx

_HEADS_FIRST = [0, 2, 1, 3]
Unique = Callable[[str], str]


def names_read(node: onnx.NodeProto) -> list[str]:
    """Return the names that a node reads, and those that its inner graphs read or return."""
    found = list(node.input)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            found += [output.name for output in attribute.g.output]
            for inner in attribute.g.node:
                found += names_read(inner)
    return found


def select_needed(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """Return the nodes that the `outputs` depend on, in order; removes others from inner graphs too."""
    read = set(outputs)
    kept = []
    for node in reversed(nodes):
        if not read.intersection(node.output):
            continue
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                inner = select_needed(
                    attribute.g.node, [output.name for output in attribute.g.output]
                )
                del attribute.g.node[:]
                attribute.g.node.extend(inner)
        read.update(names_read(node))
        kept.append(node)
    return kept[::-1]


class _Join(NamedTuple):
    """The nodes that join keys or values."""

    concat: onnx.NodeProto  # of past and new, (B, P + T, K, H)
    transpose: onnx.NodeProto  # to heads first


def join_past(
    nodes: Sequence[onnx.NodeProto], inputs: set[str], unique: Unique
) -> list[onnx.NodeProto]:
    """Return the nodes of a graph, in which each `Attention` joins its keys and values if they begin with an input.

    `inputs` are the names of the graph's inputs, and `unique` makes a new name from a wish.
    """
    result = list(nodes)
    for node in nodes:
        if node.op_type == "Attention" and not _attribute(node, "is_causal"):
            key, value = (_find_join(result, node, place, inputs) for place in (1, 2))
            if key is not None and value is not None and key.concat is not value.concat:
                result = _replace_joins(result, node, [key, value], unique)
    return result


def _find_join(
    nodes: list[onnx.NodeProto], attention: onnx.NodeProto, place: int, inputs: set[str]
) -> _Join | None:
    """Return the nodes that join an input of `attention`; None without, or if other nodes read their outputs."""
    made = {output: node for node in nodes for output in node.output}
    transpose = made.get(attention.input[place])
    if (
        transpose is None
        or transpose.op_type != "Transpose"
        or _attribute(transpose, "perm") != _HEADS_FIRST
    ):
        return None
    concat = made.get(transpose.input[0])
    if concat is None or concat.op_type != "Concat" or _attribute(concat, "axis") != 1:
        return None
    if len(concat.input) != 2 or concat.input[0] not in inputs:
        return None
    index = nodes.index(attention)
    outputs = {transpose.output[0], concat.output[0]}
    before = (
        node
        for node in nodes[:index]
        if node is not transpose and outputs.intersection(names_read(node))
    )
    after = (node for node in nodes[index + 1 :] if transpose.output[0] in names_read(node))
    readers = (*before, *after)
    return None if any(x.op_type != "Shape" for x in readers) else _Join(concat, transpose)


def _replace_joins(
    nodes: list[onnx.NodeProto], attention: onnx.NodeProto, joins: list[_Join], unique: Unique
) -> list[onnx.NodeProto]:
    """Return the nodes with an `attention` that joins keys and values itself."""
    instead: dict[str, list[onnx.NodeProto]] = {}  # by the first output of the node to replace
    present: list[onnx.NodeProto] = []
    attention.input.extend([""] * (4 - len(attention.input)))
    for place, (concat, transpose), name in zip((1, 2), joins, ("key", "value"), strict=True):
        parts = [
            _transpose(x, unique(f"{concat.name}/{part}"))
            for x, part in zip(concat.input, ("past", "new"), strict=True)
        ]
        past, new = (node.output[0] for node in parts)
        attention.input[place] = new
        attention.input.append(past)
        attention.output.append(unique(f"{attention.name}/present_{name}"))
        present.append(_transpose(attention.output[-1], concat.output[0]))
        instead[concat.output[0]] = []
        instead[transpose.output[0]] = parts
        for node in nodes:
            if node.op_type == "Shape" and node.input[0] == transpose.output[0]:
                instead[node.output[0]] = _add_lengths(node, past, new, 2, unique)
            elif node.op_type == "Shape" and node.input[0] == concat.output[0]:
                first, second = concat.input
                instead[node.output[0]] = _add_lengths(node, first, second, 1, unique)
    instead[attention.output[0]] = [attention, *present]
    return [new for node in nodes for new in instead.get(node.output[0], [node])]


def _transpose(x: str, name: str) -> onnx.NodeProto:
    return onnx.helper.make_node("Transpose", [x], [name], name=name, perm=_HEADS_FIRST)


def _add_lengths(
    shape: onnx.NodeProto, past: str, new: str, axis: int, unique: Unique
) -> list[onnx.NodeProto]:
    """Compute the output of `shape`, that of past and new together, from the shapes of both."""
    bounds = {name: _attribute(shape, name) for name in ("start", "end")}
    bounds = {name: value for name, value in bounds.items() if value is not None}
    along = np.equal(range(4), axis)[bounds.get("start", 0) : bounds.get("end", 4)]
    along = along.astype(np.int64)
    if not along.any():
        return [onnx.helper.make_node("Shape", [past], shape.output, name=shape.name, **bounds)]
    names = [unique(f"{shape.name}/{part}") for part in ("past", "new", "along", "more")]
    return [
        onnx.helper.make_node("Shape", [past], names[:1], name=names[0], **bounds),
        onnx.helper.make_node("Shape", [new], names[1:2], name=names[1], **bounds),
        onnx.helper.make_node(
            "Constant", [], names[2:3], name=names[2], value=onnx.numpy_helper.from_array(along)
        ),
        onnx.helper.make_node("Mul", names[1:3], names[3:], name=names[3]),
        onnx.helper.make_node("Add", [names[0], names[3]], shape.output, name=shape.name),
    ]


def _attribute(node: onnx.NodeProto, name: str) -> Any:
    """Return the attribute of a node, or None."""
    for attribute in node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return None
