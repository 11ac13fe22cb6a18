"""Which implementation runs: the person's choice, what is possible, and an explanation."""

from __future__ import annotations

import collections
import dataclasses
import threading
from contextvars import ContextVar
from typing import Any

from heed.ops import _native
from heed.ops._tile import Attention

_CHOICES = ("auto", "native", "portable")

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
            not) or "portable" (plain TensorFlow, everywhere).

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
        if name not in _CHOICES:
            raise ValueError(
                f"`name` must be one of {', '.join(map(repr, _CHOICES))}. Received: name={name!r}"
            )
        if name == "native" and (reasons := _native.unsupported_reasons()):
            raise ValueError(
                f"The native implementation cannot run: {'; '.join(reasons)}. Received: name={name!r}"
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
    """What is chosen here and now: "auto", "native" or "portable"."""
    return _of_context.get() or _of_process


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """Which implementation runs a call, and why.

    Attributes:
        implementation: "native" or "portable".
        reasons: sentences for a person.
    """

    implementation: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.implementation}: {'; '.join(self.reasons)}"


def choose(attention: Attention | None = None, widths: tuple[int, ...] = ()) -> Dispatch:
    """The implementation for a call that is about to be made; None asks about calls without special wishes.

    Args:
        attention: what is to be computed.
        widths: H and V.

    Raises:
        ValueError: if "native" was chosen and the kernels do not support the call.
    """
    chosen = choice()
    if chosen == "portable":
        return Dispatch("portable", ("chosen with heed.set_implementation",))
    reasons = _native.unsupported_reasons(attention, widths)
    if not reasons:
        return Dispatch("native", ("the native kernels support this call",))
    if chosen == "native":
        raise ValueError(f"The native implementation cannot run this call: {'; '.join(reasons)}")
    return Dispatch("portable", tuple(reasons))


def implementation_in_use() -> tuple[str, str]:
    """The implementation that calls without special wishes get, and why."""
    dispatch = choose()
    return dispatch.implementation, "; ".join(dispatch.reasons)


def instruction_set() -> str:
    """What the native kernels use on this machine, "none" where there are none."""
    return _native.instruction_set()
