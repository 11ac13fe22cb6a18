"""Makes `import heed` enough for `keras.models.load_model` of a file with heed's layers.

Keras finds a class in a file by its registered name, such as "heed>MultiHeadAttention". Importing `heed.layers`
registers the names, so it is imported when Keras first looks one up.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_REGISTRY = "keras.src.saving.object_registration"


def register_on_demand() -> None:
    """Patch Keras' registry, now or once it is imported."""
    if _REGISTRY in sys.modules:
        _teach(sys.modules[_REGISTRY])
    else:
        sys.meta_path.insert(0, _WhenImported())


def _teach(registry: ModuleType) -> None:
    original = getattr(registry, "get_registered_object", None)
    if original is None:  # Keras has moved it: users must import heed's parts
        return

    @functools.wraps(original)
    def get_registered_object(name: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(name, str) and name.startswith("heed>"):
            importlib.import_module("heed.models")  # and with it its layers and ops
        return original(name, *args, **kwargs)

    registry.get_registered_object = get_registered_object  # type: ignore[attr-defined]


class _WhenImported:
    """A finder that is installed until Keras' registry is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the other finders, with a loader that patches the module."""
        if name != _REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_teach(module: ModuleType) -> None:
                execute(module)
                _teach(module)

            spec.loader.exec_module = execute_and_teach  # type: ignore[method-assign]
        return spec
