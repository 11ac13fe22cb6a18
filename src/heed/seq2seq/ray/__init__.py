"""heed on a Ray cluster; install heed-attention[ray].

- `Translator`: translates a column in a pipeline of Ray Data.
- `deployment`: the HTTP server of `heed serve` as a deployment of Ray Serve.

`heed translate --launch ray` is in `corpus.py`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heed.seq2seq.ray._replicas import deployment
    from heed.seq2seq.ray._translator import Translator

__all__ = ["Translator", "deployment"]

_MODULES = {"Translator": "_translator", "deployment": "_replicas"}


def __getattr__(name: str) -> Any:
    """Import a part when it is first used (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)
