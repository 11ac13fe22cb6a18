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
from typing import Any

Make = Callable[[Callable[..., Any]], Callable[..., Any]]  # a replacement from the original

_everywhere = False
_inside: ContextVar[bool] = ContextVar("heed_inside_an_accelerated_layer", default=False)

_lock = threading.Lock()
calls: collections.Counter[str] = collections.Counter()
left_to_keras: collections.Counter[str] = collections.Counter()


def active() -> bool:
    """Whether an attention that is called now runs on heed."""
    return _everywhere or _inside.get()


def everywhere() -> bool:
    """Whether all models are accelerated."""
    return _everywhere


def set_everywhere(on: bool) -> None:
    """Turns heed on or off for all models."""
    global _everywhere
    _everywhere = on


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
    """Notes a call that runs on heed."""
    with _lock:
        calls[target] += 1


def leave(target: str, reason: str, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Notes that a call is left to Keras, and why, and makes it."""
    with _lock:
        left_to_keras[f"{target}: {reason}"] += 1
    return original(*args, **kwargs)


def replacement(
    name: str | Callable[[Any], str], leave_for: Callable[..., str | None]
) -> Callable[[Callable[..., Any]], Make]:
    """Turns a function that computes on heed into what makes the replacement of one of Keras.

    Args:
        name: for the report; or what gives it for the first argument, the layer.
        leave_for: why a call is left to Keras, or None.

    Both functions get the arguments by the names of the original, with its defaults.
    """

    def make_with(run: Callable[..., Any]) -> Make:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
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

        return make

    return make_with
