"""What is to be computed, as the blocks want it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from heed.ops.backends.tensorflow.portable.tile import Attention, fold, unfold
from heed.ops.backends.tensorflow.run_time_checks import Demands, check_broadcast
from heed.ops.sizes import Size, size, sizes
from heed.ops.spec import AttentionSpec, DotScore, Tensors


@dataclasses.dataclass(frozen=True)
class Problem:
    """An attention and its tensors.

    Attributes:
        attention: what to compute.
        query: (B, K, G, T, H); key: (B, K, S, H); value: (B, K, S, V) or None; all in the spec's dtype.
        bias: of the scores, (B or 1, N or 1, T or 1, S or 1), or None.
        parameters: what else the score function takes.
        scores_per_pair: numbers held for one (query, key) pair at once, see `make_plan`.
    """

    attention: Attention
    query: tf.Tensor
    key: tf.Tensor
    value: tf.Tensor | None
    bias: tf.Tensor | None
    parameters: Sequence[tf.Tensor]
    scores_per_pair: int

    @classmethod
    def of(cls, spec: AttentionSpec, tensors: Tensors) -> Problem:
        """From what the backend was given."""
        query, key = tf.cast(tensors.query, spec.dtype), tf.cast(tensors.key, spec.dtype)
        value = None if tensors.value is None else tf.cast(tensors.value, spec.dtype)
        batch = 8 if spec.batch is None else spec.batch
        length_axis = 1 if spec.heads_axis is None else 3 - spec.heads_axis
        lengths = (size(query, length_axis), size(key, length_axis))
        heads = (spec.kv_heads, spec.queries_per_kv)
        if isinstance(spec.score, DotScore):
            score: Any = _Scaled(spec.score)
            per_pair, parameters = batch * spec.heads[0], []
            bias = _settled_bias(tensors.bias, (size(query, 0), spec.heads[0], *lengths))
        else:
            score, bias = additive_score, None
            per_pair, parameters = batch * spec.widths[0], [tensors.score_vector]
            if tensors.bias is not None:
                query += tensors.bias
        attention = Attention(
            score, spec.mask, tensors.slopes, spec.dropout, tensors.seed, heads, lengths
        )
        if spec.heads_axis is None:
            query, key, value = (None if x is None else x[:, None] for x in (query, key, value))
        elif spec.heads_axis == 2:
            query, key, value = (
                None if x is None else tf.transpose(x, (0, 2, 1, 3)) for x in (query, key, value)
            )
        rows, _, length, width = sizes(query)
        query = tf.reshape(query, tf.stack([rows, *heads, length, width]))
        return cls(attention, query, key, value, bias, parameters, max(1, per_pair))


@dataclasses.dataclass(frozen=True)
class _Scaled:
    """A `DotScore` on query (B, K, G, t, H) and key (B, K, s, H), to (B, K, G, t, s)."""

    how: DotScore

    def __call__(self, query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        # NumPy's numbers, for TensorFlow keeps every Python number that it has met, for ever.
        real = query.dtype.as_numpy_dtype
        # The scale goes to the query: fewer numbers than the scores.
        scaled = fold(query * real(self.how.scale))
        scores = unfold(tf.matmul(scaled, key, transpose_b=True), query.shape[2])
        if self.how.soft_cap is None:
            return scores
        return real(self.how.soft_cap) * tf.tanh(scores * real(1 / self.how.soft_cap))


def additive_score(query: tf.Tensor, key: tf.Tensor, score_vector: tf.Tensor) -> tf.Tensor:
    """Query (B, 1, 1, t, U), key (B, 1, s, U), score_vector (U,) to (B, 1, 1, t, s)."""
    hidden = tf.tanh(query[..., :, None, :] + key[:, :, None, None])
    return tf.linalg.matvec(hidden, score_vector)


def _settled_bias(bias: tf.Tensor | None, full: Sequence[Size]) -> tf.Tensor | None:
    """Whether an unknown dimension broadcasts must be settled now: its gradient depends on it."""
    if bias is None or None not in bias.shape.as_list():
        return bias
    demands = Demands()
    check_broadcast(demands, "bias", bias, full, "(B, N, T, S)")
    known = zip(bias.shape.as_list(), full, strict=True)
    shape = [other if size is None else size for size, other in known]
    return tf.broadcast_to(demands.before(bias), tf.stack(shape))
