"""Decoding with any model that offers the methods of `Decodable`; `heed.models` has the public names.

They load when they are first used, so the command line reads `options` without Keras.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heed.decoding._generation import explain_generate, generate
    from heed.decoding.decodable import Decodable
    from heed.decoding.streaming import stream

__all__ = ["Decodable", "explain_generate", "generate", "stream"]

_LAZY = {
    "Decodable": "heed.decoding.decodable",
    "explain_generate": "heed.decoding._generation",
    "generate": "heed.decoding._generation",
    "stream": "heed.decoding.streaming",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
