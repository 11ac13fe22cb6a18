"""Which implementation runs: the person's choice, what is possible, and an explanation."""

from __future__ import annotations

import dataclasses
from typing import Any

from heed.ops import _native
from heed.ops._tile import Attention

_CHOICES = ("auto", "native", "portable")
_chosen = "auto"


class set_implementation:  # noqa: N801  (a function to its users, which also works in a `with` statement)
    """Chooses which implementation of attention runs from now on, or inside a `with` block.

    Args:
        name: "auto" (native kernels where they support the call, else portable), "native" (an error where they do
            not) or "portable" (plain TensorFlow, everywhere).

    Raises:
        ValueError: for another name, or for "native" where no native library is at hand.

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
        global _chosen
        if name not in _CHOICES:
            raise ValueError(
                f"`name` must be one of {', '.join(map(repr, _CHOICES))}. Received: name={name!r}"
            )
        if name == "native" and (reasons := _native.unsupported_reasons()):
            raise ValueError(
                f"The native implementation cannot run: {'; '.join(reasons)}. Received: name={name!r}"
            )
        self._before, _chosen = _chosen, name

    def __enter__(self) -> set_implementation:
        return self

    def __exit__(self, *_: Any) -> None:
        global _chosen
        _chosen = self._before


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
    if _chosen == "portable":
        return Dispatch("portable", ("chosen with heed.set_implementation",))
    reasons = _native.unsupported_reasons(attention, widths)
    if not reasons:
        return Dispatch("native", ("the native kernels support this call",))
    if _chosen == "native":
        raise ValueError(f"The native implementation cannot run this call: {'; '.join(reasons)}")
    return Dispatch("portable", tuple(reasons))


def implementation_in_use() -> tuple[str, str]:
    """The implementation that calls without special wishes get, and why."""
    dispatch = choose()
    return dispatch.implementation, "; ".join(dispatch.reasons)


def instruction_set() -> str:
    """What the native kernels use on this machine, "none" where there are none."""
    return _native.instruction_set()
