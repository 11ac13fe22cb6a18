"""Keys and values that are joined to earlier ones, as inputs and outputs of `Attention`.

A step of decoding joins what it was given, (B, P, K, H), with what it has made, and attends to the whole. The operator
does both: it takes the past and the new ones apart, and gives them joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx

from heed.export.onnx.reading import names_read

_HEADS_FIRST = [0, 2, 1, 3]
Unique = Callable[[str], str]


class _Whole(NamedTuple):
    """Keys or values that a graph joins."""

    joined: onnx.NodeProto  # Concat of past and new, (B, P + T, K, H)
    turned: onnx.NodeProto  # the same with heads first


def join_past(
    nodes: Sequence[onnx.NodeProto], inputs: set[str], unique: Unique
) -> list[onnx.NodeProto]:
    """The nodes of a graph, where each `Attention` joins its keys and values itself if they begin with an input.

    Args:
        nodes: those of the graph, in order.
        inputs: the names of what the graph is given.
        unique: gives a name that nothing has yet, near the one that is wished.
    """
    result = list(nodes)
    for node in nodes:
        if node.op_type == "Attention" and not _attribute(node, "is_causal"):
            whole = [_found(result, node, place, inputs) for place in (1, 2)]
            key, value = whole
            if key is not None and value is not None and key.joined is not value.joined:
                result = _joined(result, node, [key, value], unique)
    return result


def _found(
    nodes: list[onnx.NodeProto], attention: onnx.NodeProto, place: int, inputs: set[str]
) -> _Whole | None:
    """What an input of `attention` is joined of; None if it is not, or if something else needs it before."""
    made = {output: node for node in nodes for output in node.output}
    turned = made.get(attention.input[place])
    if (
        turned is None
        or turned.op_type != "Transpose"
        or _attribute(turned, "perm") != _HEADS_FIRST
    ):
        return None
    joined = made.get(turned.input[0])
    if joined is None or joined.op_type != "Concat" or _attribute(joined, "axis") != 1:
        return None
    if len(joined.input) != 2 or joined.input[0] not in inputs:
        return None
    index = nodes.index(attention)
    outputs = {turned.output[0], joined.output[0]}
    before = (
        node
        for node in nodes[:index]
        if node is not turned and outputs.intersection(names_read(node))
    )
    after = (node for node in nodes[index + 1 :] if turned.output[0] in names_read(node))
    return (
        None
        if any(node.op_type != "Shape" for node in (*before, *after))
        else _Whole(joined, turned)
    )


def _joined(
    nodes: list[onnx.NodeProto], attention: onnx.NodeProto, whole: list[_Whole], unique: Unique
) -> list[onnx.NodeProto]:
    """The nodes with an `attention` that joins."""
    instead: dict[str, list[onnx.NodeProto]] = {}  # by the first output of the node that goes
    behind: list[onnx.NodeProto] = []
    attention.input.extend([""] * (4 - len(attention.input)))
    for place, (joined, turned), name in zip((1, 2), whole, ("key", "value"), strict=True):
        parts = [
            _transposed(x, unique(f"{joined.name}/{what}"))
            for x, what in zip(joined.input, ("past", "new"), strict=True)
        ]
        past, new = (node.output[0] for node in parts)
        attention.input[place] = new
        attention.input.append(past)
        attention.output.append(unique(f"{attention.name}/present_{name}"))
        behind.append(_transposed(attention.output[-1], joined.output[0]))
        instead[joined.output[0]] = []
        instead[turned.output[0]] = parts
        for node in nodes:
            if node.op_type == "Shape" and node.input[0] == turned.output[0]:
                instead[node.output[0]] = _lengths(node, past, new, 2, unique)
            elif node.op_type == "Shape" and node.input[0] == joined.output[0]:
                instead[node.output[0]] = _lengths(
                    node, joined.input[0], joined.input[1], 1, unique
                )
    instead[attention.output[0]] = [attention, *behind]
    return [new for node in nodes for new in instead.get(node.output[0], [node])]


def _transposed(x: str, name: str) -> onnx.NodeProto:
    return onnx.helper.make_node("Transpose", [x], [name], name=name, perm=_HEADS_FIRST)


def _lengths(
    shape: onnx.NodeProto, past: str, new: str, axis: int, unique: Unique
) -> list[onnx.NodeProto]:
    """What `shape` says of past and new together, from the shapes of both."""
    asked = {name: _attribute(shape, name) for name in ("start", "end")}
    asked = {name: value for name, value in asked.items() if value is not None}
    along = np.equal(range(4), axis)[asked.get("start", 0) : asked.get("end", 4)].astype(np.int64)
    if not along.any():
        return [onnx.helper.make_node("Shape", [past], shape.output, name=shape.name, **asked)]
    names = [unique(f"{shape.name}/{what}") for what in ("past", "new", "along", "more")]
    return [
        onnx.helper.make_node("Shape", [past], names[:1], name=names[0], **asked),
        onnx.helper.make_node("Shape", [new], names[1:2], name=names[1], **asked),
        onnx.helper.make_node(
            "Constant", [], names[2:3], name=names[2], value=onnx.numpy_helper.from_array(along)
        ),
        onnx.helper.make_node("Mul", names[1:3], names[3:], name=names[3]),
        onnx.helper.make_node("Add", [names[0], names[3]], shape.output, name=shape.name),
    ]


def _attribute(node: onnx.NodeProto, name: str) -> Any:
    """What a node says under that name; None if it says nothing."""
    for attribute in node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return None
