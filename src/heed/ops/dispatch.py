"""Selects the implementation of a call, and explains the selection."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from heed.ops.backends import NATIVE, PORTABLE, constant_while_tracing, current
from heed.ops.backends.protocol import Implementation
from heed.ops.backends.shared.fused_ops import FusedOps
from heed.ops.recomputation import Restore, keep
from heed.ops.sequence_split import sequence_positions
from heed.ops.spec import AttentionSpec
from heed.patching import set_here

AUTO = "auto"  # leaves the choice to heed
# Choices of plain calls, for the process; the last one counts. A `with` statement makes its object first, so each
# object is in here until it is entered, and is then removed by identity, whatever other threads have added meanwhile.
_plain_choices: collections.deque[set_implementation] = collections.deque(maxlen=64)
_process_choice = AUTO
_lock = threading.Lock()
# The choice inside `with`.
_context_choice: ContextVar[str | None] = ContextVar("heed_implementation", default=None)

# Whether the sequences of attentions are split across workers.
_is_split: ContextVar[bool] = ContextVar("heed_split_sequence", default=False)


@contextmanager
def split_across_workers() -> Iterator[None]:
    """Let dot-product attention in the block be over a sequence split across workers, as `split_sequence` does.

    Masks are over the whole sequence. Without workers it changes nothing.
    """
    token = _is_split.set(True)
    try:
        yield
    finally:
        _is_split.reset(token)


@constant_while_tracing
def _is_split_here() -> bool:
    return _is_split.get()


def splits_sequences() -> bool:
    """Return whether attention here is over sequences split across several workers."""
    return _is_split_here() and current().worker()[1] > 1


def first_position(length: Any) -> Any:
    """Return the position of the first of a worker's tokens, to which their indices are added.

    Args:
        length: of the worker's part of a sequence.

    Returns: 0; where sequences are split, (length,) int32, as the tokens of the late stretch are farther on.

    Raises:
        ValueError: if the sequence is split and the length is not known while tracing, or odd.
    """
    if not splits_sequences():
        return 0
    index, workers = current().worker()
    if not isinstance(length, int) or length % 2:
        raise ValueError(
            "A worker's part of a split sequence must have an even length that is known while tracing. "
            f"Received: length={length}"
        )
    return sequence_positions(length * workers, workers, index) - np.arange(length, dtype="int32")


class set_implementation:  # noqa: N801  (a function to its users, which also works in a `with` statement)
    """Chooses the implementation of attention from now on, or inside a `with` block.

    Args:
        name: "auto" (native kernels if they support the call, else portable), "native" (an error if they do not),
            "portable" (plain operations of the backend, everywhere), on TensorFlow "exportable" (one expression without
            loops, which holds all scores at once; used by `heed.export`), or the framework's own fused attention on a
            GPU, which "auto" prefers to the portable form where its result is heed's: on PyTorch "sdpa", "varlen_attn"
            or "flex_attention", on JAX "cudnn".

    Raises:
        ValueError: for another name, or for "native" without the native library.

    A plain call applies to the process, with all its threads. A `with` block applies to the thread (or asynchronous
    task) that runs it and to no other, except those that run in a copy of its context
    (`contextvars.copy_context().run`, `asyncio.to_thread`). A plain call inside a block applies until the block ends.

    A `tf.function` keeps the implementation with which it was traced. XLA cannot compile the native kernels: inside
    `tf.function(jit_compile=True)` "auto" selects the portable form (but a function traced earlier with the native
    kernels cannot be called there), and Keras' `compile(jit_compile=True)` warns and continues without XLA. To compile
    a Keras model with XLA, choose "portable" before `compile`.

    >>> import heed
    >>> with heed.set_implementation("portable"):
    ...     print(heed.info()["implementation"])
    portable
    """

    def __init__(self, name: str):
        known = current().IMPLEMENTATIONS
        if not isinstance(name, str) or name not in (AUTO, *known):
            names = ", ".join(map(repr, (AUTO, *known)))
            raise ValueError(f"`name` must be one of {names}. Received: name={name!r}")
        if name in known and (reasons := known[name].unsupported_reasons(None)):
            raise ValueError(
                f"The {name} implementation cannot run: {'; '.join(reasons)}. Received: name={name!r}"
            )
        self._name, self._before = name, _context_choice.get()
        if self._before is None:
            with _lock:
                _plain_choices.append(self)
                _update_process_choice()
        else:
            _context_choice.set(name)

    def __enter__(self) -> set_implementation:
        with _lock:
            if self in _plain_choices:
                _plain_choices.remove(self)
                _update_process_choice()
        _context_choice.set(self._name)
        return self

    def __exit__(self, *_: Any) -> None:
        _context_choice.set(self._before)


def _update_process_choice() -> None:
    global _process_choice
    _process_choice = _plain_choices[-1]._name if _plain_choices else AUTO


@constant_while_tracing
def get_implementation() -> str:
    """Return the name chosen here and now with `set_implementation`; "auto" by default."""
    return _context_choice.get() or _process_choice


@keep
def _remember_choices() -> Restore:
    choice, is_split = get_implementation(), _is_split.get()

    @contextmanager
    def restore() -> Iterator[None]:
        with set_here(_context_choice, choice), set_here(_is_split, is_split):
            yield

    return restore


def allows_native() -> bool:
    """Return whether the choice allows native code: the kernels and the decoder engine."""
    return get_implementation() in (AUTO, NATIVE)


def uses_native() -> bool:
    """Return whether the native kernels run calls without special options here and now."""
    return _select(None)[0] == NATIVE


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """The implementation that runs a call, and why.

    Attributes:
        implementation: "native", "portable", "exportable" or one of `FUSED_ON_GPU`; for decoding "engine" or "graph".
        reasons: sentences for messages.
    """

    implementation: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.implementation}: {'; '.join(self.reasons)}"


def _select(spec: AttentionSpec | None) -> tuple[str, Sequence[str]]:
    """Return the name of the implementation, and the reasons against the ones before it; see `explain`."""
    choice, known = get_implementation(), current().IMPLEMENTATIONS
    if choice == PORTABLE:
        return choice, ("chosen with heed.set_implementation",)
    against: list[str] = []
    for name in known if choice == AUTO else (choice,):
        if name == PORTABLE:
            break
        reasons = known[name].unsupported_reasons(spec)
        if not reasons:
            return name, against
        # Implementations of one device may share reasons.
        against += [reason for reason in reasons if reason not in against]
    if choice != AUTO:
        raise ValueError(f"The {choice} implementation cannot run this call: {'; '.join(against)}")
    return PORTABLE, against


def explain(spec: AttentionSpec | None = None) -> Dispatch:
    """Return the implementation that a call gets, and why; None asks about calls without special options.

    Raises:
        ValueError: if the chosen implementation does not support the call.
    """
    name, reasons = _select(spec)
    if name != PORTABLE:
        reasons = (*reasons, f"the {name} kernels support this call")
    return Dispatch(name, tuple(reasons))


def select_implementation(spec: AttentionSpec) -> Implementation:
    """Return the implementation that runs a call.

    Raises:
        ValueError: if the chosen implementation does not support the call.
    """
    name = _select(spec)[0]
    if _is_split_here():
        return current().across_workers(name)
    return current().IMPLEMENTATIONS[name]


def select_for_weights() -> Implementation:
    """Return the implementation of weights and statistics: the portable one, unless one of another name is chosen."""
    return current().IMPLEMENTATIONS[PORTABLE if allows_native() else get_implementation()]


def select_fused_ops() -> FusedOps:
    """Return the fused row-wise ops of the implementation that runs here, else the portable ones.

    Raises:
        ValueError: if the chosen implementation cannot run here.
    """
    known = current().FUSED_OPS
    return known.get(_select(None)[0], known[PORTABLE])
