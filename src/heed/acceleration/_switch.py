"""Where heed is on: everywhere, or inside the layers of chosen models; and what it has done so far.

Every replacement asks `active()` and else does what Keras does. So a replacement that cannot be taken out, because
another library has wrapped it since, is harmless.
"""

from __future__ import annotations

import collections
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

Function = Callable[..., Any]


@dataclass(frozen=True)
class Replacement:
    """What takes the place of a function of Keras.

    Attributes:
        make: makes it from the original.
        required, optional: the parameters that the original must and may have.
    """

    make: Callable[[Function], Function]
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


everywhere = False  # whether all models are accelerated
_inside: ContextVar[bool] = ContextVar("heed_inside_an_accelerated_layer", default=False)

_lock = threading.Lock()
calls: collections.Counter[str] = collections.Counter()
left_to_keras: collections.Counter[str] = collections.Counter()


def active() -> bool:
    """Whether an attention that is called now runs on heed."""
    return everywhere or _inside.get()


@contextmanager
def inside() -> Iterator[None]:
    """Heed is on for what this thread calls meanwhile."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def forget() -> None:
    """Starts counting anew."""
    with _lock:
        calls.clear()
        left_to_keras.clear()


def count(target: str) -> None:
    """Notes that a call runs on heed."""
    with _lock:
        calls[target] += 1


def leave(target: str, reason: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Notes that a call is left to Keras, and why, and makes it."""
    with _lock:
        left_to_keras[f"{target}: {reason}"] += 1
    return original(*args, **kwargs)


def replacement(
    name: str | Callable[[Any], str], leave_for: Callable[..., str | None]
) -> Callable[[Function], Replacement]:
    """Turns a function that computes on heed into the replacement of one of Keras with these parameters.

    Args:
        name: for the report; or what gives it for the first argument, the layer.
        leave_for: why a call is left to Keras, or None.

    Both functions get the arguments by name, with the defaults of the original. Parameters of the function that have a
    default are those that the original may lack.
    """

    def replace_with(run: Function) -> Replacement:
        def make(original: Function) -> Function:
            signature = inspect.signature(original)

            @functools.wraps(original)
            def accelerated(*args: Any, **kwargs: Any) -> Any:
                if not active():
                    return original(*args, **kwargs)
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                reason = leave_for(**bound.arguments)
                target = name if isinstance(name, str) else name(bound.args[0])
                if reason:
                    return leave(target, reason, original, *args, **kwargs)
                count(target)
                return run(**bound.arguments)

            return accelerated

        parameters = inspect.signature(run).parameters.values()
        required = tuple(x.name for x in parameters if x.default is x.empty)
        return Replacement(
            make, required, tuple(x.name for x in parameters if x.default is not x.empty)
        )

    return replace_with
