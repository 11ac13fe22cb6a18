"""A function of another package, replaced for one thread or task only, and only for a while."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any


class ContextPatch:
    """An attribute that is another function for those inside `active()`, and itself for everybody else.

    Args:
        owner: the module or class that has it.
        name: the attribute.
        make: takes the original and gives what is called in its place.
    """

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self._owner, self._name = owner, name
        self._original = getattr(owner, name)
        self._replacement = make(self._original)
        self._here: ContextVar[bool] = ContextVar(f"heed_patch_{name}", default=False)
        self._lock, self._users = threading.Lock(), 0

        @functools.wraps(self._original)
        def chosen(*args: Any, **kwargs: Any) -> Any:
            return (self._replacement if self._here.get() else self._original)(*args, **kwargs)

        self._chosen = chosen

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Meanwhile the replacement is called, in this thread or task."""
        with self._lock:
            if not self._users:
                setattr(self._owner, self._name, self._chosen)
            self._users += 1
        token = self._here.set(True)
        try:
            yield
        finally:
            self._here.reset(token)
            with self._lock:
                self._users -= 1
                if not self._users:
                    setattr(self._owner, self._name, self._original)
