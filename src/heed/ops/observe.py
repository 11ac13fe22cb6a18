"""Who looks on: while someone watches, every attention that runs here is shown to him before its output goes on.

Watching is how `heed.inspect` sees the attention of a whole model. It costs one look at a context variable where
nobody does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from heed.ops.spec import AttentionSpec, Tensors

# Gets what was computed, of what, and its output; returns the output that goes on.
Watcher = Callable[[AttentionSpec, Tensors, Any], Any]

_watcher: ContextVar[Watcher | None] = ContextVar("heed_watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Shows `watcher` each attention that this thread runs meanwhile."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def watched() -> bool:
    """Whether somebody looks on."""
    return _watcher.get() is not None


def shown(output: Any, spec: AttentionSpec, tensors: Tensors) -> Any:
    """The output, after whoever watches has seen it."""
    watcher = _watcher.get()
    return output if watcher is None else watcher(spec, tensors, output)
