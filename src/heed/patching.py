"""Replaces functions of other libraries, and puts them back.

Several users may patch one function at once and stop in any order. While it is patched, its name holds one function,
the entry, which calls the replacements that are installed at that moment. If another library has wrapped the entry when
the last user stops, the entry stays where it is and calls the original.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import pathlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

Function = Callable[..., Any]

_lock = threading.RLock()
_places: dict[tuple[Any, str], _Place] = {}
_INHERITED = object()


@dataclass(frozen=True)
class Replacement:
    """The replacement of a function, and the parameters that it expects of the original."""

    make: Callable[[Function], Function]  # takes the original and returns the replacement
    # `required`, `optional`: the parameters that the original must and may have, in order. `required=None` allows any.
    required: tuple[str, ...] | None = None
    optional: tuple[str, ...] = ()


class Patch:
    """Replaces one function, for the whole process. Each `install` needs one `uninstall`.

    Args:
        owner: the module or class that has the function.
        name: its attribute.
        replacement: the replacement.
        label: its name in reports and errors. Default: owner and name.
        package: the package that must define the original, so that a function that another library has already
            replaced is refused. Default: any.
        copies: whether to replace it also in loaded modules that have imported it by name.
    """

    def __init__(
        self,
        owner: Any,
        name: str,
        replacement: Replacement,
        label: str | None = None,
        package: ModuleType | None = None,
        copies: bool = False,
    ) -> None:
        self.owner, self.name, self.replacement = owner, name, replacement
        self.label = label or f"{getattr(owner, '__name__', owner)}.{name}"
        self.package, self.copies = package, copies

    @property
    def is_awake(self) -> bool:
        """Whether the entry calls the replacement."""
        return True

    @property
    def installed(self) -> bool:
        """Whether it is installed."""
        place = _places.get((self.owner, self.name))
        return place is not None and self in place.users

    def find_problem(self) -> str | None:
        """Describe the difference between the expected and the found original; None if it can be replaced."""
        place = _places.get((self.owner, self.name))
        original = (
            unwrap_entry(getattr(self.owner, self.name, None)) if place is None else place.original
        )
        code = getattr(original, "__code__", None)
        if original is None or (self.package and code is None):
            return f"{self.label}: expected a function, found {original or 'nothing'!s}"
        if self.package and code:
            source = pathlib.Path(code.co_filename)
            if pathlib.Path(self.package.__file__ or "").parent not in source.parents:
                own = f"{self.package.__name__}'s own function"
                return f"{self.label}: expected {own}, found one that replaced it, of {source}"
        required, optional = self.replacement.required, self.replacement.optional
        if required is not None:
            names = tuple(inspect.signature(original).parameters)
            if names != (*required, *(name for name in optional if name in names)):
                return f"{self.label}: expected the parameters {required}, found {names}"
        return None

    def install(self) -> None:
        """Put the replacement in front of the original and of the replacements that are installed already.

        Raises:
            RuntimeError: if the original is not as expected; nothing is changed then.
        """
        with _lock:
            if problem := self.find_problem():
                raise RuntimeError(problem)
            key = self.owner, self.name
            place = _places.get(key) or _places.setdefault(key, _Place(*key))
            place.add(self)

    def uninstall(self) -> None:
        """Take back one `install`; do nothing if there was none."""
        with _lock:
            key = self.owner, self.name
            place = _places.get(key)
            if place is not None and self in place.users and place.remove(self):
                del _places[key]

    def make(self, original: Function) -> Function:
        """Return the function to call in place of `original`."""
        return self.replacement.make(original)


class SleepingPatch(Patch):
    """A patch that takes part only inside `awake`: outside, an installed one costs one call."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.uses = 0

    @property
    def is_awake(self) -> bool:
        """Whether somebody is inside `awake`, in any thread."""
        return self.uses > 0

    def change_uses(self, by: int) -> None:
        """Count somebody who enters or leaves."""
        with _lock:
            self.uses += by
            if place := _places.get((self.owner, self.name)):
                place.compose()


class ContextPatch(Patch):
    """A patch that only the thread or task inside `active()` sees."""

    def __init__(self, owner: Any, name: str, make: Callable[[Function], Function]) -> None:
        super().__init__(owner, name, Replacement(make))
        self._active: ContextVar[bool] = ContextVar(f"heed_patch_{name}", default=False)

    def make(self, original: Function) -> Function:
        """Make a replacement that calls the original itself, for everybody else."""
        replacement = self.replacement.make(original)

        @functools.wraps(original)
        def chosen(*args: Any, **kwargs: Any) -> Any:
            return (replacement if self._active.get() else original)(*args, **kwargs)

        return chosen

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Replace the function for this thread or task."""
        self.install()
        try:
            with set_here(self._active, True):
                yield
        finally:
            self.uninstall()


@contextlib.contextmanager
def awake(patches: Iterable[SleepingPatch]) -> Iterator[None]:
    """Let sleeping patches take part, in all threads."""
    patches = tuple(patches)
    for patch in patches:
        patch.change_uses(1)
    try:
        yield
    finally:
        for patch in patches:
            patch.change_uses(-1)


@contextlib.contextmanager
def set_here(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Set a context variable, for this thread or task."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextlib.contextmanager
def activate(patches: Iterable[ContextPatch]) -> Iterator[None]:
    """Replace several functions for this thread or task."""
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch.active())
        yield


def is_entry(function: Any) -> bool:
    """Return whether this is the entry of a patched function, and no wrapper of it that copied its attributes."""
    return function is not None and getattr(function, "heed_entry", None) is function


def unwrap_entry(function: Any) -> Any:
    """Find the original of a function that an earlier import of heed patched, as in a notebook that reloads modules."""
    while is_entry(function):
        function = function.__wrapped__
    return function


class _Place:
    """A patched attribute: its original, the patches installed there, and the entry."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.original = function = unwrap_entry(getattr(owner, name))
        self.users: dict[Patch, int] = {}
        self._function: Function = function
        # A class must get back the attribute as it was stored, or none where it inherits it.
        self._stored = unwrap_entry(vars(owner).get(name, _INHERITED))

        @functools.wraps(function)
        def entry(*args: Any, **kwargs: Any) -> Any:
            return self._function(*args, **kwargs)

        entry.heed_entry = entry  # type: ignore[attr-defined]
        self._entry = entry

    def add(self, patch: Patch) -> None:
        self.users[patch] = self.users.get(patch, 0) + 1
        self.compose()
        found = getattr(self.owner, self.name)
        if unwrap_entry(found) is self.original:
            setattr(self.owner, self.name, self._entry)
        if patch.copies:
            self._replace_copies(self._entry)

    def remove(self, patch: Patch) -> bool:
        """Remove one use; return whether the original is back, and nothing of the patches left."""
        self.users[patch] -= 1
        copies = any(user.copies for user in self.users)
        if not self.users[patch]:
            del self.users[patch]
        self.compose()
        if self.users or getattr(self.owner, self.name) is not self._entry:
            return False
        if self._stored is _INHERITED:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self._stored)
        if copies:
            self._replace_copies(self.original)
        return True

    def compose(self) -> None:
        """Let the entry call the replacements that are awake."""
        function = self.original
        for patch in self.users:
            if patch.is_awake:
                function = patch.make(function)
        self._function = function

    def _replace_copies(self, new: Function) -> None:
        for module in tuple(sys.modules.values()):
            # Not `getattr`, at which some modules load others.
            names = getattr(module, "__dict__", {})
            if unwrap_entry(names.get(self.name)) is self.original:
                names[self.name] = new
