"""What the weights of an attention amount to, row by row, without holding them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from heed.ops import _checks
from heed.ops._at_run_time import check_operands
from heed.ops._blocks import Plan, tile_plan, visible_blocks
from heed.ops._finite import Operands, break_where
from heed.ops._forward import fresh_keys
from heed.ops._loops import State, block_list, join, loop
from heed.ops._mask_terms import cut
from heed.ops._sizes import Size, Span, is_static, sizes
from heed.ops._tile import Attention
from heed.ops._weights import indices
from heed.ops.attention import DotCall

# Its exponential is 0 in every float type, and it times any sum is finite.
_FAR_BELOW = -1e4


class AttentionStatistics(NamedTuple):
    """Statistics of each row of weights, all float32 (float64 for float64).

    Attributes:
        entropy: (B, N, T), -sum_j w_ij ln w_ij in nats: 0 for a row on one key, ln(n) for one spread evenly over n.
        distance: (B, N, T), sum_j w_ij |i + a - j| in positions, with the alignment a of the mask (0 without one).
        mass: (B, N, T, number of chosen keys), w_ij of these keys.

    >>> import numpy as np
    >>> x = np.zeros((1, 2, 1, 8), "float32")
    >>> entropy, distance, mass = attention_statistics(x, x, keys=[0])
    >>> distance.numpy().tolist(), mass.numpy().tolist()
    ([[[0.5, 0.5]]], [[[[0.5], [0.5]]]])
    """

    entropy: tf.Tensor
    distance: tf.Tensor
    mass: tf.Tensor


@tf.autograph.experimental.do_not_convert
def attention_statistics(
    query: Any,
    key: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    soft_cap: float | None = None,
    alibi_slopes: Any = None,
    layout: str = "BTNH",
    keys: Sequence[int] = (),
) -> AttentionStatistics:
    """Entropy, mean distance and mass on chosen keys of every row of attention weights, in linear memory.

    With w = softmax_j(cap(scale * q_i . k_j) + bias_ij, over the j that mask allows), see `AttentionStatistics`.
    They describe the weights before dropout. Keys that the mask rules out for a whole block of queries are skipped,
    and no more than a block of scores is held at a time.

    Args:
        query, key, mask, bias, is_causal, scale, soft_cap, alibi_slopes, layout: as given to
            `dot_product_attention`.
        keys: on which keys to report the mass, integers in [0, S); for example (0,) for an attention sink.

    Returns: an `AttentionStatistics`. A row that may attend to nothing has 0 in all of them; one that holds or sees
        NaN or Inf has NaN. They are constants: no gradient flows through them, for it would need all the weights. A
        loss may use `attention_weights`.

    Raises:
        ValueError, TypeError: as `dot_product_attention`.

    Source: entropy and distance as in Vig and Belinkov, "Analyzing the Structure of Attention in a Transformer
        Language Model", 2019; mass on the first key: Xiao et al., "Efficient Streaming Language Models with
        Attention Sinks", 2024.

    >>> import numpy as np
    >>> x = np.zeros((1, 4, 1, 8), "float32")  # equal scores: each row spreads evenly over what it sees
    >>> rows = attention_statistics(x, x, is_causal=True, keys=[0])
    >>> np.exp(rows.entropy[0, 0]).round(3).tolist(), rows.distance[0, 0].numpy().round(3).tolist()
    ([1.0, 2.0, 3.0, 4.0], [0.0, 0.5, 1.0, 1.5])
    >>> rows.mass[0, 0, :, 0].numpy().round(3).tolist()
    [1.0, 0.5, 0.3330000042915344, 0.25]
    """
    (query, key), _ = _checks.common_type(query=query, key=key)
    call = DotCall.of(
        query, key, mask, bias, is_causal, scale, soft_cap, alibi_slopes, 0.0, None, layout
    )
    query, key = call.split(tf.stop_gradient(query), tf.stop_gradient(key))
    bias = None if call.bias is None else tf.stop_gradient(call.bias)
    chosen = indices("keys", keys, call.attention.lengths[1])
    rows = _statistics(call.attention, query, key, bias, chosen, call.scores_per_pair)
    entropy, distance, mass = (call.attention.join_heads(x) for x in rows)
    return AttentionStatistics(entropy[..., 0], distance[..., 0], mass)


def _statistics(
    attention: Attention,
    query: tf.Tensor,
    key: tf.Tensor,
    bias: tf.Tensor | None,
    chosen: list[int],
    scores_per_pair: int,
) -> list[tf.Tensor]:
    """Entropy and distance (B, K, G, T, 1) and mass (B, K, G, T, number of chosen keys)."""
    query, key, _, mask = check_operands(query, key, None, attention.mask, attention.lengths)
    attention = dataclasses.replace(attention, mask=mask)
    shape, widths = sizes(query)[:4], (1, 1, len(chosen))
    if is_static(*attention.lengths) and 0 in attention.lengths:
        return [tf.zeros(tf.stack([*shape, width]), query.dtype) for width in widths]
    # Values that are 1 on a chosen key: what an attention returns for them is the mass.
    marks = tf.one_hot(tf.constant(chosen, tf.int32), attention.lengths[1], axis=0)
    marks = tf.cast(marks, query.dtype)[None, None]
    operands = Operands.of(query, key, marks, guarded=attention.mask is not None)
    plan = tile_plan(*attention.lengths, scores_per_pair)
    shapes = [[*shape[:3], plan.query_block, width] for width in widths]
    count = plan.query_blocks
    lists = [block_list(count, None if is_static(count) else x, query.dtype) for x in shapes]

    def body(index: Size, state: State) -> State:
        queries = plan.queries(index)
        rows = _rows(attention, plan, operands.cut_queries(queries), bias, queries)
        return [x.write(index, row) for x, row in zip(state, rows, strict=True)]

    lists = loop(0, count, body, lists)
    return [
        join(x, count, plan.query_length, 3, block) for x, block in zip(lists, shapes, strict=True)
    ]


def _rows(
    attention: Attention, plan: Plan, block: Operands, bias: tf.Tensor | None, queries: Span
) -> list[tf.Tensor]:
    """The same of a block of queries, over one block of keys after the other.

    With the largest score m so far, the running sums are of e^(a-m), of e^(a-m) (a-m), of e^(a-m) times the distance
    and of e^(a-m) times the marks. The entropy is ln(sum e^(a-m)) - sum e^(a-m) (a-m) / sum e^(a-m), in which no two
    large numbers cancel.
    """
    dtype = block.query.dtype
    shape = [*sizes(block.query)[:3], queries.length]
    zeros = tf.zeros(tf.stack([*shape, 1]), dtype)

    def body(index: Size, state: State) -> State:
        highest, total, below, far, mass = state[:5]
        keys = plan.keys(index)
        tile = block.cut_keys(keys)
        visible = attention.visible(queries, keys, fresh_keys(plan, index))
        addend = attention.addend(queries, keys, cut(bias, queries, keys), visible, dtype)
        logits = attention.score(tile.query, tile.key)
        if addend is not None:
            logits += addend
        higher = tf.maximum(highest, tf.reduce_max(logits, -1, keepdims=True))
        drop = tf.maximum(highest - higher, _FAR_BELOW)
        shrink = tf.exp(drop)
        logits -= higher
        # A hidden pair adds 0 to the second sum, not 0 * inf.
        logits = tf.where(logits < _FAR_BELOW, tf.constant(_FAR_BELOW, dtype), logits)
        weights = tf.exp(logits)
        distance = weights * attention.distance(queries, keys, dtype)[..., None, :, :]
        following = [
            higher,
            total * shrink + tf.reduce_sum(weights, -1, keepdims=True),
            (below + drop * total) * shrink + tf.reduce_sum(weights * logits, -1, keepdims=True),
            far * shrink + tf.reduce_sum(distance, -1, keepdims=True),
            mass * shrink + _shares(weights, tile.value),
        ]
        if block.guarded:
            following.append(tf.logical_or(state[5], tile.broken_rows(visible)))
        return following

    mass = zeros * tf.zeros((block.value.shape[3],), dtype)
    state = [zeros + dtype.min, zeros, zeros, zeros, mass]
    if block.guarded:
        state.append(tf.zeros_like(zeros, tf.bool))
    bounds = visible_blocks(plan, attention.mask, queries)
    _, total, below, far, mass, *broken = loop(*bounds, body, state)
    seen = tf.not_equal(total, 0)
    total = tf.where(seen, total, tf.ones((), dtype))
    entropy = tf.math.log(total) - below / total
    rows = [tf.where(seen, x, tf.zeros((), dtype)) for x in (entropy, far / total, mass / total)]
    if not broken:
        return rows
    return [break_where(tf.logical_and(broken[0], seen), x) for x in rows]


def _shares(weights: tf.Tensor, marks: tf.Tensor) -> tf.Tensor:
    """Weights (B, K, G, t, s) times the marks of the keys (1, 1, s, n), which all heads share: (B, K, G, t, n).

    As one product of two matrices. A batched one would broadcast (B, 1, m, k) against (1, 1, k, n), for which
    TensorFlow's oneDNN kernel gives wrong numbers or writes past its buffers.
    """
    return tf.tensordot(weights, marks[0, 0], 1)
