"""Keras layers over `heed.ops`.

Attention layers take `(query, value, key=None)`, masks of every kind that Keras knows and
`heed.Mask`, and return the weights on request without changing the output by a bit.

Layers load when they are first used, so the command line reads `layer_config` without Keras.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from heed.lazy import load_on_use

if TYPE_CHECKING:
    from heed.layers._additive_attention import AdditiveAttention
    from heed.layers._dot_product_attention import DotProductAttention
    from heed.layers._embedding import TokenEmbedding
    from heed.layers._feed_forward import FeedForward
    from heed.layers._location_aware_attention import LocationAwareAttention
    from heed.layers._luong_attention import LuongAttention
    from heed.layers._multi_head_attention import MultiHeadAttention
    from heed.layers._positions import LearnedPositions, RelativePositionBias, SinusoidalPositions
    from heed.layers._replacing import from_keras, replace_attention
    from heed.layers._transformer_layers import TransformerDecoderLayer, TransformerEncoderLayer

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
    "._additive_attention": ("AdditiveAttention",),
    "._dot_product_attention": ("DotProductAttention",),
    "._embedding": ("TokenEmbedding",),
    "._feed_forward": ("FeedForward",),
    "._location_aware_attention": ("LocationAwareAttention",),
    "._luong_attention": ("LuongAttention",),
    "._multi_head_attention": ("MultiHeadAttention",),
    "._positions": ("LearnedPositions", "RelativePositionBias", "SinusoidalPositions"),
    "._replacing": ("from_keras", "replace_attention"),
    "._transformer_layers": ("TransformerDecoderLayer", "TransformerEncoderLayer"),
}


def _require_backend(name: str, module: str) -> None:
    importlib.import_module("heed.ops")  # says what is missing


__getattr__, __dir__ = load_on_use(__name__, _MODULES, _require_backend)
