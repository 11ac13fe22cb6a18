"""Inspects traced graphs of TensorFlow: which implementation ran, and what it allocated; skips tests elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.backend import BACKEND, tf


@dataclass
class Traced:
    """The functions that were traced inside the block, known when it ends.

    `ops` are all types of their nodes; `native` those of heed's own; `by_xla` whether any must be compiled by XLA.
    """

    ops: set[str] = field(default_factory=set)
    by_xla: bool = False

    @property
    def native(self) -> set[str]:
        return {name for name in self.ops if name.startswith("Heed")}


@contextmanager
def traced() -> Iterator[Traced]:
    """Look at every function that TensorFlow traces inside the block, inner ones included."""
    if BACKEND != "tensorflow":
        pytest.skip("graphs are about TensorFlow")
    from tensorflow.python.eager import context

    eager = context.context()
    eager.ensure_initialized()
    before = set(eager.list_function_names())
    found = Traced()
    yield found
    for name in set(eager.list_function_names()) - before:
        if name.startswith("__wrapped__"):  # around an op that runs by itself
            continue
        definition = eager.get_function_def(name)
        found.ops |= {node.op for node in definition.node_def}
        found.by_xla |= definition.attr["_XlaMustCompile"].b


def allocated(function: Any, *inputs: tf.Tensor, scope: str = "while/body") -> int:
    """Sum the bytes that a concrete function without captured states allocates in its ops of that scope.

    Memory that an op takes over from another counts once. The function runs in a session, which alone tells.
    """
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    frozen = convert_variables_to_constants_v2(function)
    v1, told = tf.compat.v1, tf.compat.v1.RunMetadata()
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(frozen.graph.as_graph_def(), name="")
        feeds = {given.name: x.numpy() for given, x in zip(frozen.inputs, inputs, strict=True)}
        with v1.Session(graph=graph) as session:
            names = [output.name for output in frozen.outputs]
            session.run(names, feeds, options=options, run_metadata=told)
    return sum(
        record.alloc_bytes
        for device in told.step_stats.dev_stats
        for node in device.node_stats
        if scope in node.node_name
        for memory in node.memory
        for record in memory.allocation_records
        if record.alloc_bytes > 0
    )
