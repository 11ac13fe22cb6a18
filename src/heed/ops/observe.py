"""Lets `heed.inspect` watch every attention of a model, and replace its output.

Without a watcher it costs one lookup of a context variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from heed.ops.backends import constant_while_tracing
from heed.ops.spec import AttentionSpec, Tensors

# Gets the spec, the operands and the output of an attention; returns the output to go on with.
Watcher = Callable[[AttentionSpec, Tensors, Any], Any]

_watcher: ContextVar[Watcher | None] = ContextVar("heed_watcher", default=None)


@contextmanager
def set_watcher(watcher: Watcher) -> Iterator[None]:
    """Call `watcher` with each attention that this thread runs inside the `with` block."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@constant_while_tracing
def is_watched() -> bool:
    """Return whether a watcher is active in this thread."""
    return _watcher.get() is not None


def show(output: Any, spec: AttentionSpec, tensors: Tensors) -> Any:
    """Show an attention to the watcher, if any; return the output to go on with."""
    if not is_watched():
        return output
    watcher: Any = _watcher.get()
    return watcher(spec, tensors, output)
