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

from heed.acceleration import _switch, _t5
from heed.acceleration._patches import Function, Method

_PACKAGE = "keras_hub"


def fused_attention_op_available(original: Callable[..., bool]) -> Callable[..., bool]:
    """The question that most models ask."""

    @functools.wraps(original)
    def accelerated() -> bool:
        return _switch.active() or original()

    return accelerated


def _question(module: ModuleType, text: str) -> Method:
    """In all modules: every model has a copy of the function's name."""
    name, package = "fused_attention_op_available", sys.modules[_PACKAGE]
    return Function(module, name, _QUESTION, text, package)


def _t5_layer(module: ModuleType, text: str) -> Method:
    owner = getattr(module, "T5MultiHeadAttention", None)
    return Method(owner, "call", _t5.call, text, sys.modules[_PACKAGE])


def use_fused_attention_op(original: Callable[..., bool]) -> Callable[..., bool]:
    """The method by which some layers decide, which wants a GPU or TPU; their fused op has no dropout."""

    @functools.wraps(original)
    def accelerated(self: Any) -> bool:
        if not _switch.active():
            return original(self)
        if self.dropout:
            return _switch.leave(f"{_PACKAGE}.{type(self).__name__}", "dropout", original, self)
        return True

    return accelerated


def _decision(module: ModuleType, text: str) -> Method:
    owner = getattr(module, text.split(".")[1], None)
    name, package = "_use_fused_attention_op", sys.modules[_PACKAGE]
    return Method(owner, name, _DECISION, text, package)


_QUESTION = _switch.Replacement(fused_attention_op_available, ())
_DECISION = _switch.Replacement(use_fused_attention_op, ("self",))

# What is patched: module, name for a report, and how.
_Make = Callable[[ModuleType, str], Method]
_MODELS = f"{_PACKAGE}.src.models"
_DECIDING = {
    "gemma.gemma_attention": "CachedGemmaAttention",
    "gemma3.gemma3_attention": "CachedGemma3Attention",
    "gemma4.gemma4_attention": "Gemma4TextAttention",
    "mixtral.mixtral_attention": "CachedMixtralAttention",
    "qwen_moe.qwen_moe_attention": "QwenMoeAttention",
}
_TARGETS: dict[str, tuple[str, _Make]] = {
    f"{_MODELS}.t5.t5_multi_head_attention": (f"{_t5.NAME}.call", _t5_layer),
    **{
        f"{_MODELS}.{module}": (f"{_PACKAGE}.{cls}._use_fused_attention_op", _decision)
        for module, cls in _DECIDING.items()
    },
    f"{_PACKAGE}.src.utils.keras_utils": (
        f"{_PACKAGE}.src.utils.keras_utils.fused_attention_op_available",
        _question,
    ),
}


class Hub(importlib.abc.MetaPathFinder):
    """Patches KerasHub: at once where it is loaded, else right when it loads."""

    def __init__(self) -> None:
        self._patches: dict[str, Method] = {}
        self._problems: dict[str, str] = {}

    @property
    def state(self) -> tuple[str, ...]:
        """For a report: what is patched, or why not."""
        if _PACKAGE not in sys.modules:
            return ("KerasHub is not loaded; it will be patched when it is",)
        found = {**{name: patch.text for name, patch in self._patches.items()}, **self._problems}
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
        text, make = _TARGETS[module.__name__]
        patch = make(module, text)
        if problem := patch.problem():
            self._problems[module.__name__] = f"KerasHub's own attention stays: {problem}"
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
