"""Attention as pure functions on TensorFlow tensors: no T x S score matrix, every mask, two derivatives.

Also fused row-wise ops: normalization, dropout, cross-entropy.
Letters: B batch, T query length, S key length, N query heads, K key/value heads, H features of query and key, V
features of value, U units of additive attention, D model width, C classes. In every mask True means "attend".
"""

from heed.ops import backends  # noqa: F401  (first: it reports missing packages)

# isort: split
from heed.ops._additive import additive_attention, additive_attention_weights
from heed.ops._explain import explain_dispatch
from heed.ops._positions import (
    alibi_slopes,
    relative_position_bias,
    relative_position_buckets,
    rotary_embedding,
    sinusoidal_positions,
)
from heed.ops._row_ops import dropout, layer_normalization, rms_normalization, softmax_cross_entropy
from heed.ops.attention import (
    AttentionStatistics,
    attention_statistics,
    attention_weights,
    dot_product_attention,
    scaled_dot_product_attention,
)
from heed.ops.dispatch import Dispatch, set_implementation
from heed.ops.mask import Mask

__all__ = [
    "AttentionStatistics",
    "Dispatch",
    "Mask",
    "additive_attention",
    "additive_attention_weights",
    "alibi_slopes",
    "attention_statistics",
    "attention_weights",
    "dot_product_attention",
    "dropout",
    "explain_dispatch",
    "layer_normalization",
    "relative_position_bias",
    "relative_position_buckets",
    "rms_normalization",
    "rotary_embedding",
    "scaled_dot_product_attention",
    "set_implementation",
    "sinusoidal_positions",
    "softmax_cross_entropy",
]
