"""Patches KerasHub, most of whose models do not use fused attention.

Most models call a function that says whether a fused attention exists; some also require a GPU or TPU; T5 computes its
attention itself. Modules may load before or after `heed.accelerate`.
"""

from __future__ import annotations

import functools
import importlib.abc
import itertools
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from heed._patching import Patch, Replacement
from heed.acceleration import _switch, _t5
from heed.acceleration._decoding import decoding_patches, prompt_patches

_PACKAGE = "keras_hub"


def fused_attention_op_available(original: Callable[..., bool]) -> Callable[..., bool]:
    """The function that most models call."""

    @functools.wraps(original)
    def accelerated() -> bool:
        return _switch.is_enabled() or original()

    return accelerated


def use_fused_attention_op(original: Callable[..., bool]) -> Callable[..., bool]:
    """The method of layers that require a GPU or TPU; their fused op has no dropout."""

    @functools.wraps(original)
    def accelerated(self: Any) -> bool:
        if not _switch.is_enabled():
            return original(self)
        if self.dropout:
            name = f"{_PACKAGE}.{type(self).__name__}"
            return _switch.leave_to_keras(name, "dropout", original, self)
        return True

    return accelerated


_MODELS = f"{_PACKAGE}.src.models"
_AVAILABILITY = Replacement(fused_attention_op_available, ())
_CHOICE = Replacement(use_fused_attention_op, ("self",))
_CHOOSING = {
    "gemma.gemma_attention": "CachedGemmaAttention",
    "gemma3.gemma3_attention": "CachedGemma3Attention",
    "gemma4.gemma4_attention": "Gemma4TextAttention",
    "mixtral.mixtral_attention": "CachedMixtralAttention",
    "qwen_moe.qwen_moe_attention": "QwenMoeAttention",
}
# By module, the class and the function to replace. Models import the function without a class by name.
_FUNCTIONS: dict[str, tuple[str | None, str, Replacement]] = {
    f"{_MODELS}.t5.t5_multi_head_attention": ("T5MultiHeadAttention", "call", _t5.call),
    **{
        f"{_MODELS}.{module}": (cls, "_use_fused_attention_op", _CHOICE)
        for module, cls in _CHOOSING.items()
    },
    f"{_PACKAGE}.src.utils.keras_utils": (None, "fused_attention_op_available", _AVAILABILITY),
}
_CAUSAL_LM = f"{_MODELS}.causal_lm"
_MODULES = (_CAUSAL_LM, *_FUNCTIONS)


def _make_patches(module: ModuleType) -> list[Patch]:
    package = sys.modules[_PACKAGE]
    if module.__name__ == _CAUSAL_LM:
        return decoding_patches(module, package)
    cls, name, replacement = _FUNCTIONS[module.__name__]
    owner = getattr(module, cls, None) if cls else module
    label = f"{_PACKAGE}.{cls}.{name}" if cls else f"{module.__name__}.{name}"
    return [Patch(owner, name, replacement, label, package, copies=cls is None)]


class Hub(importlib.abc.MetaPathFinder):
    """Patches the modules of KerasHub: at once if they are loaded, otherwise when they load."""

    def __init__(self) -> None:
        self._patches: dict[str, list[Patch]] = {}
        self._problems: dict[str, str] = {}

    @property
    def state(self) -> tuple[str, ...]:
        """The patches and the problems, for a report."""
        if _PACKAGE not in sys.modules:
            return ("KerasHub is not loaded; it will be patched when it is",)
        labels = {name: [patch.label for patch in self._patches[name]] for name in self._patches}
        labels |= {name: [problem] for name, problem in self._problems.items()}
        return tuple(label for name in _MODULES for label in labels.get(name, ()))

    @property
    def patches(self) -> tuple[Patch, ...]:
        """The patches that are installed."""
        return tuple(itertools.chain(*self._patches.values()))

    def install(self) -> None:
        """Patches the modules that are loaded, and the others when they load."""
        sys.meta_path.insert(0, self)
        for name in _MODULES:
            if name in sys.modules:
                self.patch(sys.modules[name])

    def uninstall(self) -> None:
        """Undoes `install`."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for patch in itertools.chain(prompt_patches.values(), *self._patches.values()):
            patch.uninstall()
        prompt_patches.clear()
        self._patches.clear()
        self._problems.clear()

    def patch(self, module: ModuleType) -> None:
        """Patches one module, or notes why it cannot be."""
        name = module.__name__
        try:
            patches = _make_patches(module)
            problem = next(filter(None, (patch.find_problem() for patch in patches)), None)
        except ImportError as error:  # of a module of Keras
            problem = str(error)
        if problem:
            self._problems[name] = f"{name} stays as it is: {problem}"
            return
        for patch in patches:
            patch.install()
        self._patches[name] = patches

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the other finders, with a loader that patches the module."""
        if fullname not in _MODULES:
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
            self._hub.patch(module)
