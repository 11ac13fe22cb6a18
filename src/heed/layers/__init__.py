"""Keras layers over `heed.ops`.

Attention layers take `(query, value, key=None)`, masks of every kind that Keras knows and
`heed.Mask`, and return the weights on request without changing the output by a bit.

Layers load when they are first used, so the command line reads `layer_config` without Keras.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heed.layers.additive_attention import AdditiveAttention
    from heed.layers.dot_product_attention import DotProductAttention
    from heed.layers.embedding import TokenEmbedding
    from heed.layers.feed_forward import FeedForward
    from heed.layers.location_aware_attention import LocationAwareAttention
    from heed.layers.luong_attention import LuongAttention
    from heed.layers.multi_head_attention import MultiHeadAttention
    from heed.layers.positions import LearnedPositions, RelativePositionBias, SinusoidalPositions
    from heed.layers.replacing import from_keras, replace_attention
    from heed.layers.transformer_layers import TransformerDecoderLayer, TransformerEncoderLayer

__all__ = [
    "AdditiveAttention",
    "DotProductAttention",
    "FeedForward",
    "LearnedPositions",
    "LocationAwareAttention",
    "LuongAttention",
    "MultiHeadAttention",
    "RelativePositionBias",
    "SinusoidalPositions",
    "TokenEmbedding",
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
    "from_keras",
    "replace_attention",
]

_MODULES = {
    "additive_attention": ("AdditiveAttention",),
    "dot_product_attention": ("DotProductAttention",),
    "embedding": ("TokenEmbedding",),
    "feed_forward": ("FeedForward",),
    "location_aware_attention": ("LocationAwareAttention",),
    "luong_attention": ("LuongAttention",),
    "multi_head_attention": ("MultiHeadAttention",),
    "positions": ("LearnedPositions", "RelativePositionBias", "SinusoidalPositions"),
    "replacing": ("from_keras", "replace_attention"),
    "transformer_layers": ("TransformerDecoderLayer", "TransformerEncoderLayer"),
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports a layer when it is first used (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    importlib.import_module("heed.ops")  # first: it says what is missing
    value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the public names, loaded or not."""
    return sorted(__all__)
