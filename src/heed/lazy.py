"""Packages whose public names load when they are first used (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def load_on_use(
    package: str,
    modules: Mapping[str, Sequence[str]],
    before: Callable[[str, str], object] = lambda name, module: None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package.

    Args:
        package: its `__name__`.
        modules: names of each module; the module as `importlib.import_module` takes it, relative to the package or not.
        before: called with a name and its module before that is imported; it may say what is missing.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        before(name, places[name])
        value = getattr(importlib.import_module(places[name], package), name)
        setattr(sys.modules[package], name, value)  # the next access does not come here again
        return value

    return get, lambda: sorted(places)
