"""Which ops TensorFlow traced, and whether XLA compiled them: the proof of which implementation ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tensorflow.python.eager import context


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
    """Looks at every function that TensorFlow traces inside the block, inner ones included."""
    eager = context.context()
    eager.ensure_initialized()
    before = set(eager.list_function_names())
    found = Traced()
    yield found
    for name in set(eager.list_function_names()) - before:
        definition = eager.get_function_def(name)
        found.ops |= {node.op for node in definition.node_def}
        found.by_xla |= definition.attr["_XlaMustCompile"].b
