"""KerasHub: its models ask whether a fused attention exists, and on TensorFlow were told that none does."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from heed.acceleration import _switch
from heed.acceleration._patches import ORIGINALS, Body

MODULE = "keras_hub.src.utils.keras_utils"
_FUNCTION = "fused_attention_op_available"
_KEY = "hub"


def fused_attention_op_available() -> bool:
    """The body that KerasHub's function of this name gets; see `Body`."""
    from heed.acceleration import _hub

    return _hub.available()


def available() -> bool:
    """Whether there is a fused attention now."""
    return _switch.active() or ORIGINALS[_KEY]()


class Hub(importlib.abc.MetaPathFinder):
    """Patches KerasHub: at once where it is loaded, else right when it loads."""

    def __init__(self) -> None:
        self._body: Body | None = None
        self._problem = "KerasHub is not loaded; it will be patched when it is"

    @property
    def state(self) -> str:
        """For a report."""
        if self._body is not None:
            return f"{MODULE}.{_FUNCTION}"
        return self._problem

    def install(self) -> None:
        """Patches KerasHub now or when it comes."""
        if MODULE in sys.modules:
            self.patch(sys.modules[MODULE])
        elif self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def uninstall(self) -> None:
        """Undoes it."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self._body is not None:
            self._body.uninstall()
            self._body = None

    def patch(self, module: ModuleType) -> None:
        """Replaces the function's body, of which every model has a copy of the name."""
        function = getattr(module, _FUNCTION, None)
        if function is None:
            self._problem = "KerasHub is not patched: it does not ask for a fused attention"
            return
        package = sys.modules[MODULE.split(".")[0]]
        body = Body(function, fused_attention_op_available, _KEY, (), _FUNCTION, package)
        if problem := body.problem():
            self._problem = f"KerasHub is not patched: {problem}"
            return
        body.install()
        self._body = body

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give, with a loader that patches."""
        if fullname != MODULE:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, self)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, hub: Hub) -> None:
        self._loader, self._hub = loader, hub

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        if self._hub in sys.meta_path:
            sys.meta_path.remove(self._hub)
            self._hub.patch(module)
