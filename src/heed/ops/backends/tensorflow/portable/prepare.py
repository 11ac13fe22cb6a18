"""Turns a spec and its tensors into the form of the portable implementation."""

from __future__ import annotations

import tensorflow as tf

from heed.ops.backends.tensorflow.portable.finite import Operands
from heed.ops.backends.tensorflow.portable.run_time_checks import check_operands
from heed.ops.backends.tensorflow.portable.tile import BlockAttention, Score
from heed.ops.sizes import size, sizes
from heed.ops.spec import AttentionSpec, Tensors


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
    query, bias = spec.score.add_bias(query, tensors.bias)
    features = spec.score.numbers_per_pair(spec.widths[0])
    heads = (spec.kv_heads, spec.queries_per_kv)
    batch, _, length, width = sizes(query)
    query = tf.reshape(query, tf.stack([batch, *heads, length, width]))
    operands = Operands(query, key, value, bias, tensors.score_vector)
    lengths = (length, size(key, 2))
    operands, mask = check_operands(operands, spec.mask, lengths)
    per_pair = (8 if spec.batch is None else spec.batch) * spec.heads[0] * features
    attention = BlockAttention(
        _score(spec), mask, tensors.slopes, spec.dropout, tensors.seed, heads, lengths, max(1, per_pair)
    )
    return attention, operands


def _score(spec: AttentionSpec) -> Score:
    def compute(
        query: tf.Tensor, key: tf.Tensor, score_vector: tf.Tensor | None = None
    ) -> tf.Tensor:
        return spec.score.apply(query, key, score_vector, _times_transposed)

    return compute


def _times_transposed(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.matmul(x, y, transpose_b=True)
