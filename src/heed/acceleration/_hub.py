"""KerasHub, whose models ask whether a fused attention exists, and on TensorFlow were told that none does.

Some want a GPU or TPU besides, and T5 computes its attention by itself. Each is patched when its module is loaded,
which may be before or after.
"""

from __future__ import annotations

import functools
import importlib.abc
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from heed._patching import Patch, Replacement
from heed.acceleration import _switch, _t5
from heed.acceleration._decoding import Decoding

_PACKAGE = "keras_hub"


def fused_attention_op_available(original: Callable[..., bool]) -> Callable[..., bool]:
    """The question that most models ask."""

    @functools.wraps(original)
    def accelerated() -> bool:
        return _switch.is_enabled() or original()

    return accelerated


def use_fused_attention_op(original: Callable[..., bool]) -> Callable[..., bool]:
    """The method by which some layers decide, which wants a GPU or TPU; their fused op has no dropout."""

    @functools.wraps(original)
    def accelerated(self: Any) -> bool:
        if not _switch.is_enabled():
            return original(self)
        if self.dropout:
            name = f"{_PACKAGE}.{type(self).__name__}"
            return _switch.leave_to_keras(name, "dropout", original, self)
        return True

    return accelerated


_AVAILABILITY = Replacement(fused_attention_op_available, ())
_CHOICE = Replacement(use_fused_attention_op, ("self",))


_MakePatch = Callable[[ModuleType], "Patch | Decoding"]


def _patch_method(cls: str, name: str, replacement: Replacement) -> _MakePatch:
    """Returns a function that makes the patch for a method of a class in a module."""
    label = f"{_PACKAGE}.{cls}.{name}"

    def make(module: ModuleType) -> Patch:
        owner = getattr(module, cls, None)
        return Patch(owner, name, replacement, label, sys.modules[_PACKAGE])

    return make


def _patch_availability(module: ModuleType) -> Patch:
    """The patch of the function that most models ask, each of which has imported it by name."""
    name = "fused_attention_op_available"
    label = f"{module.__name__}.{name}"
    return Patch(module, name, _AVAILABILITY, label, sys.modules[_PACKAGE], copies=True)


def _patch_decoding(module: ModuleType) -> Decoding:
    """The patches of the loop of all samplers."""
    return Decoding(module, sys.modules[_PACKAGE])


_MODELS = f"{_PACKAGE}.src.models"
_CHOOSING = {
    "gemma.gemma_attention": "CachedGemmaAttention",
    "gemma3.gemma3_attention": "CachedGemma3Attention",
    "gemma4.gemma4_attention": "Gemma4TextAttention",
    "mixtral.mixtral_attention": "CachedMixtralAttention",
    "qwen_moe.qwen_moe_attention": "QwenMoeAttention",
}
# What is patched: the module, and what makes its patch.
_TARGETS: dict[str, _MakePatch] = {
    f"{_MODELS}.t5.t5_multi_head_attention": _patch_method(
        "T5MultiHeadAttention", "call", _t5.call
    ),
    **{
        f"{_MODELS}.{module}": _patch_method(cls, "_use_fused_attention_op", _CHOICE)
        for module, cls in _CHOOSING.items()
    },
    f"{_PACKAGE}.src.models.causal_lm": _patch_decoding,
    f"{_PACKAGE}.src.utils.keras_utils": _patch_availability,
}


class Hub(importlib.abc.MetaPathFinder):
    """Patches KerasHub: at once where it is loaded, else right when it loads."""

    def __init__(self) -> None:
        self._patches: dict[str, Patch | Decoding] = {}
        self._problems: dict[str, str] = {}

    @property
    def state(self) -> tuple[str, ...]:
        """For a report: what is patched, or why not."""
        if _PACKAGE not in sys.modules:
            return ("KerasHub is not loaded; it will be patched when it is",)
        found = {**{name: patch.label for name, patch in self._patches.items()}, **self._problems}
        return tuple(found[name] for name in _TARGETS if name in found)

    def install(self) -> None:
        """Patches KerasHub now, and what of it is not loaded yet when it comes."""
        sys.meta_path.insert(0, self)
        for name in _TARGETS:
            if name in sys.modules:
                self.patch(sys.modules[name])

    def uninstall(self) -> None:
        """Undoes it."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for patch in self._patches.values():
            patch.uninstall()
        self._patches.clear()
        self._problems.clear()

    def patch(self, module: ModuleType) -> None:
        """Patches one module of KerasHub; where it is not as expected it stays as it is."""
        try:
            patch = _TARGETS[module.__name__](module)
            problem = patch.problem()
        except ImportError as error:  # of what it needs of Keras
            problem = str(error)
        if problem:
            self._problems[module.__name__] = f"{module.__name__} stays as it is: {problem}"
            return
        patch.install()
        self._patches[module.__name__] = patch

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give, with a loader that patches."""
        if fullname not in _TARGETS:
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
