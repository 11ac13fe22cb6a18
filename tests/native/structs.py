"""heed's declarations of the C interfaces, loaded without Keras, beside which sanitizers cannot watch the core."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import heed

# Importing these packages would import Keras; the modules that are loaded from them do not.
_PACKAGES = ("heed.ops", "heed.ops.core")


def _load(*names: str) -> list[ModuleType]:
    """Import modules without running the code of the packages that they lie in."""
    if "heed.ops" in sys.modules:
        return [importlib.import_module(name) for name in names]
    before = set(sys.modules)
    try:
        for name in _PACKAGES:
            package = sys.modules[name] = ModuleType(name)
            parts = name.split(".")[1:]
            package.__path__ = [str(Path(folder, *parts)) for folder in heed.__path__]
        return [importlib.import_module(name) for name in names]
    finally:
        for name in set(sys.modules) - before:
            if name.startswith("heed.ops"):  # whose packages are not whole
                del sys.modules[name]


attention, decoder, library = _load(
    "heed.ops.core.structs", "heed.ops.core.decoder", "heed.ops.core.library"
)
