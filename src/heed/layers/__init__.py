"""Keras layers over `heed.ops`.

Attention layers take `(query, value, key=None)`, masks of every kind that Keras knows and
`heed.Mask`, and return the weights on request without changing the output by a bit.
"""

import heed.ops  # noqa: F401  (first: it says what is missing)

# isort: split
from heed.layers.additive_attention import AdditiveAttention
from heed.layers.dot_product_attention import DotProductAttention
from heed.layers.embedding import TokenEmbedding
from heed.layers.feed_forward import FeedForward
from heed.layers.location_aware_attention import LocationAwareAttention
from heed.layers.luong_attention import LuongAttention
from heed.layers.multi_head_attention import MultiHeadAttention
from heed.layers.positions import LearnedPositions, RelativePositionBias, SinusoidalPositions
from heed.layers.replacing import replace_attention
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
    "replace_attention",
]
