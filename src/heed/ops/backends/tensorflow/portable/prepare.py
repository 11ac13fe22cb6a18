"""Turns a spec and its tensors into the form of the portable implementation."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from heed.ops.backends.tensorflow.portable.finite import Operands
from heed.ops.backends.tensorflow.portable.run_time_checks import check_operands
from heed.ops.backends.tensorflow.portable.tile import BlockAttention, Score, fold, unfold
from heed.ops.sizes import size, sizes
from heed.ops.spec import AttentionSpec, DotScore, Tensors


def prepare(spec: AttentionSpec, tensors: Tensors) -> tuple[BlockAttention, Operands]:
    """The attention and its operands, in the shapes of `tile.py`."""
    axis = spec.heads_axis

    def split(x: tf.Tensor | None) -> tf.Tensor | None:
        """(B, heads, T or S, features) in the spec's dtype."""
        if x is None:
            return None
        x = tf.cast(x, spec.dtype)
        if axis is None:
            return x[:, None]
        return tf.transpose(x, (0, 2, 1, 3)) if axis == 2 else x

    query, key, value = map(split, tensors[:3])
    bias, features = tensors.bias, spec.widths[0]
    score: Score = additive_score
    if isinstance(spec.score, DotScore):
        score, features = _Scaled(spec.score), 1
    elif bias is not None:
        query, bias = query + bias, None
    heads = (spec.kv_heads, spec.queries_per_kv)
    batch, _, length, width = sizes(query)
    query = tf.reshape(query, tf.stack([batch, *heads, length, width]))
    operands = Operands(query, key, value, bias, tensors.score_vector)
    lengths = (length, size(key, 2))
    operands, mask = check_operands(operands, spec.mask, lengths)
    per_pair = (8 if spec.batch is None else spec.batch) * spec.heads[0] * features
    attention = BlockAttention(
        score, mask, tensors.slopes, spec.dropout, tensors.seed, heads, lengths, max(1, per_pair)
    )
    return attention, operands


@dataclasses.dataclass(frozen=True)
class _Scaled:
    """A `DotScore` on query (B, K, G, t, H) and key (B, K, s, H), to (B, K, G, t, s)."""

    score: DotScore

    def __call__(self, query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        # NumPy numbers: TensorFlow keeps every Python number forever.
        real = query.dtype.as_numpy_dtype
        # Scales the query, which has fewer numbers than the scores.
        scaled = fold(query * real(self.score.scale))
        scores = unfold(tf.matmul(scaled, key, transpose_b=True), query.shape[2])
        if self.score.soft_cap is None:
            return scores
        return real(self.score.soft_cap) * tf.tanh(scores * real(1 / self.score.soft_cap))


def additive_score(query: tf.Tensor, key: tf.Tensor, score_vector: tf.Tensor) -> tf.Tensor:
    """Query (B, 1, 1, t, U), key (B, 1, s, U), score_vector (U,) to (B, 1, 1, t, s)."""
    hidden = tf.tanh(query[..., :, None, :] + key[:, :, None, None])
    return tf.linalg.matvec(hidden, score_vector)
