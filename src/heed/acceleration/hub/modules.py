"""Patches the modules of KerasHub: their attentions, T5's layer, and the samplers' loop.

Modules may load before or after `heed.accelerate`.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from heed.acceleration.hub import _t5
from heed.acceleration.hub._attention import attention_patches
from heed.acceleration.hub._sampler_loop import decoding_patches, prompt_patches
from heed.acceleration.hub.cache_readers import MODELS, PACKAGE
from heed.patching import Patch

_T5_MODULE = f"{MODELS}.t5.t5_multi_head_attention"
_CAUSAL_LM = f"{MODELS}.causal_lm"


def _is_watched(name: str) -> bool:
    return name.startswith(f"{MODELS}.")


def _make_patches(module: ModuleType) -> tuple[list[Patch], list[str]]:
    """Return the patches of a module, and its lines in a report."""
    package = sys.modules[PACKAGE]
    if module.__name__ == _CAUSAL_LM:
        patches = decoding_patches(module, package)
        return patches, [patch.label for patch in patches]
    make = _t5.layer_patches if module.__name__ == _T5_MODULE else attention_patches
    return make(module, package)


class Hub(importlib.abc.MetaPathFinder):
    """Patches the modules of KerasHub: at once if they are loaded, otherwise when they load."""

    def __init__(self) -> None:
        self._patches: list[Patch] = []
        self._lines: dict[str, list[str]] = {}

    @property
    def state(self) -> tuple[str, ...]:
        """The patches and the problems, for a report."""
        if PACKAGE not in sys.modules:
            return ("KerasHub is not loaded; it will be patched when it is",)
        return tuple(line for name in sorted(self._lines) for line in self._lines[name])

    @property
    def patches(self) -> tuple[Patch, ...]:
        """The patches that are installed."""
        return *prompt_patches.values(), *self._patches

    def install(self) -> None:
        """Patch the modules that are loaded, and the others when they load."""
        sys.meta_path.insert(0, self)
        for name, module in tuple(sys.modules.items()):
            if _is_watched(name) and module is not None:
                self.patch(module)

    def uninstall(self) -> None:
        """Undo `install`."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for patch in self.patches:
            patch.uninstall()
        prompt_patches.clear()
        self._patches.clear()
        self._lines.clear()

    def patch(self, module: ModuleType) -> None:
        """Patch one module, or note why it cannot be."""
        name = module.__name__
        try:
            patches, lines = _make_patches(module)
            problem = next(filter(None, (patch.find_problem() for patch in patches)), None)
        except ImportError as error:  # of a module of Keras
            problem = str(error)
        if problem:
            self._lines[name] = [f"{name} stays as it is: {problem}"]
            return
        for patch in patches:
            patch.install()
        self._patches += patches
        self._lines[name] = lines

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the other finders, with a loader that patches the module."""
        if not _is_watched(fullname):
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                if spec.submodule_search_locations is None:  # not of a package
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
            self._hub.patch(module)
