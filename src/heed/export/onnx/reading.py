"""Who reads what in an ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence

import onnx


def names_read(node: onnx.NodeProto) -> list[str]:
    """What a node reads, and what graphs inside of it read or give."""
    found = list(node.input)
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            found += [output.name for output in attribute.g.output]
            for inner in attribute.g.node:
                found += names_read(inner)
    return found


def read_ones(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """The nodes, in order, without those of which nothing comes to the `outputs`; in graphs inside of them too."""
    read = set(outputs)
    kept = []
    for node in reversed(nodes):
        if not read.intersection(node.output):
            continue
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                inner = read_ones(attribute.g.node, [output.name for output in attribute.g.output])
                del attribute.g.node[:]
                attribute.g.node.extend(inner)
        read.update(names_read(node))
        kept.append(node)
    return kept[::-1]
