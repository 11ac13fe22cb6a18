"""Which implementation runs: the person's choice, what is possible, and an explanation."""

from __future__ import annotations

import collections
import dataclasses
import threading
from contextvars import ContextVar
from typing import Any

from heed.ops.backends import RowImplementation, current
from heed.ops.backends.protocol import Implementation
from heed.ops.spec import AttentionSpec

# What plain calls chose for the process; the last one counts. A `with` statement, too, first makes its object and then
# enters it: each thread that has just done so takes its own out again, whatever the others did meanwhile.
_plain: collections.deque[set_implementation] = collections.deque(maxlen=64)
_of_process = "auto"
_lock = threading.Lock()
# What holds inside `with`.
_of_context: ContextVar[str | None] = ContextVar("heed_implementation", default=None)


class set_implementation:  # noqa: N801  (a function to its users, which also works in a `with` statement)
    """Chooses which implementation of attention runs from now on, or inside a `with` block.

    Args:
        name: "auto" (native kernels where they support the call, else portable), "native" (an error where they do
            not), "portable" (plain TensorFlow, everywhere) or "exportable" (one expression without loops, which
            holds all scores at once; chosen by `heed.export`).

    Raises:
        ValueError: for another name, or for "native" where no native library is at hand.

    A plain call holds for the process, all threads included. A `with` block holds for the thread (or asynchronous task)
    that runs it, and no other sees it: not those that were there, nor those that it starts, unless these run in a
    copy of its context (`contextvars.copy_context().run`, `asyncio.to_thread`). A plain call inside of a block holds
    until the end of the block, and there alone.

    A `tf.function` keeps the implementation that was chosen when it was traced. XLA cannot compile the native kernels:
    inside `tf.function(jit_compile=True)` "auto" takes the portable form (but a function that was traced with the
    native kernels before cannot be called from there), and Keras' `compile(jit_compile=True)` warns and goes on
    without XLA. To have XLA compile a Keras model choose "portable" before `compile`.

    >>> import heed
    >>> with heed.set_implementation("portable"):
    ...     print(heed.info()["implementation"])
    portable
    """

    def __init__(self, name: str):
        known = current().IMPLEMENTATIONS
        if not isinstance(name, str) or name not in ("auto", *known):
            names = ", ".join(map(repr, ("auto", *known)))
            raise ValueError(f"`name` must be one of {names}. Received: name={name!r}")
        if name in known and (reasons := known[name].unsupported_reasons(None)):
            raise ValueError(
                f"The {name} implementation cannot run: {'; '.join(reasons)}. Received: name={name!r}"
            )
        self._name, self._before = name, _of_context.get()
        if self._before is None:
            with _lock:
                _plain.append(self)
                _settle()
        else:
            _of_context.set(name)

    def __enter__(self) -> set_implementation:
        with _lock:
            if self in _plain:
                _plain.remove(self)
                _settle()
        _of_context.set(self._name)
        return self

    def __exit__(self, *_: Any) -> None:
        _of_context.set(self._before)


def _settle() -> None:
    global _of_process
    _of_process = _plain[-1]._name if _plain else "auto"


def choice() -> str:
    """What is chosen here and now: "auto", "native", "portable" or "exportable"."""
    return _of_context.get() or _of_process


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """Which implementation runs a call, and why.

    Attributes:
        implementation: "native", "portable" or "exportable"; of decoding "engine" or "graph".
        reasons: sentences for a person.
    """

    implementation: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.implementation}: {'; '.join(self.reasons)}"


def _chosen(spec: AttentionSpec | None) -> tuple[str, tuple[str, ...]]:
    chosen, known = choice(), current().IMPLEMENTATIONS
    if chosen == "portable":
        return chosen, ("chosen with heed.set_implementation",)
    first = next(iter(known)) if chosen == "auto" else chosen
    reasons = known[first].unsupported_reasons(spec)
    if not reasons:
        return first, (f"the {first} kernels support this call",)
    if chosen != "auto":
        raise ValueError(f"The {chosen} implementation cannot run this call: {'; '.join(reasons)}")
    return "portable", tuple(reasons)


def explain(spec: AttentionSpec | None = None) -> Dispatch:
    """Which implementation a call gets, and why; None asks about calls without special wishes.

    Raises:
        ValueError: if one was chosen that does not support the call.
    """
    return Dispatch(*_chosen(spec))


def choose(spec: AttentionSpec) -> Implementation:
    """The implementation for a call that is about to be made.

    Raises:
        ValueError: if one was chosen that does not support the call.
    """
    return current().IMPLEMENTATIONS[_chosen(spec)[0]]


def choose_for_rows() -> RowImplementation:
    """The implementation of what stands beside attention: that of the same name, else the portable one.

    Raises:
        ValueError: if one was chosen that cannot run here.
    """
    known = current().ROW_IMPLEMENTATIONS
    return known.get(_chosen(None)[0], known["portable"])


def everywhere() -> Implementation:
    """The implementation of weights and statistics: the portable one, unless one of another name was chosen."""
    chosen = choice()
    return current().IMPLEMENTATIONS["portable" if chosen in ("auto", "native") else chosen]
