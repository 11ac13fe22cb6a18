"""Finds the values that the nodes of an ONNX graph read."""

from __future__ import annotations

from collections.abc import Sequence

import onnx


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
