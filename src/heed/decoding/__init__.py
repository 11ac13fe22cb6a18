"""Decoding with any model that offers the methods of `Decodable`; `heed.models` has the public names.

They load when they are first used, so the command line reads `options` without Keras.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heed.lazy import load_on_use

if TYPE_CHECKING:
    from heed.decoding._generation import explain_generate, generate
    from heed.decoding.decodable import Decodable
    from heed.decoding.streaming import stream

__all__ = ["Decodable", "explain_generate", "generate", "stream"]

__getattr__, __dir__ = load_on_use(
    __name__,
    {
        "._generation": ("explain_generate", "generate"),
        ".decodable": ("Decodable",),
        ".streaming": ("stream",),
    },
)
