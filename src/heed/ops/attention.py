"""Dot-product attention, its weights and their statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from keras import ops

from heed.ops import arguments, checks
from heed.ops.backends import as_written
from heed.ops.dispatch import select_for_weights, select_implementation
from heed.ops.mask import Mask
from heed.ops.observe import show
from heed.ops.options import (
    AttentionOptions,
    StatisticsOptions,
    defaults_of,
    takes_options_of,
)
from heed.ops.sizes import shape_of, size, sizes

if TYPE_CHECKING:
    from typing_extensions import Unpack


@as_written
def dot_product_attention(
    query: Annotated[Any, "B T N H"],
    key: Annotated[Any, "B S K H"],
    value: Annotated[Any, "B S K V"],
    *,
    mask: Any = None,
    bias: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    soft_cap: float | None = None,
    alibi_slopes: Annotated[Any, "N"] = None,
    score_mod: Any = None,
    dropout: float = 0.0,
    seed: Any = None,
    layout: str = "BTNH",
    return_lse: bool = False,
) -> Annotated[Any, "B T N V"]:
    """Compute exact attention that never builds the T x S score matrix.

    output_i = sum_j dropout(softmax_j(f(cap(scale * q_i . k_j)) + bias_ij, over the j that mask allows)) v_j,
    with cap(x) = soft_cap * tanh(x / soft_cap), and f the `score_mod`.

    Args:
        query: (B, T, N, H), float16, bfloat16, float32 or float64.
        key: (B, S, K, H); K divides N: query head n uses key head n // (N / K). K = 1 is multi-query attention.
        value: (B, S, K, V); V may differ from H.
        mask: a `Mask`, or booleans or integers that broadcast to (B, N, T, S); True means "attend". Default: all.
        bias: added to the scores, broadcasts to (B, N, T, S), floating-point; -1e30 or less hides the key as -inf
            does. Default: none.
        is_causal: key j is visible to query i only if j <= i; combines with `mask`. For another alignment pass
            `Mask.causal(align)`.
        scale: the factor of the products; finite, and in [-1e30, 1e30] unless float64. Default: 1 / sqrt(H).
        soft_cap: bounds the scaled products to (-soft_cap, soft_cap); > 0, and in [1e-30, 1e30] unless float64.
            Default: no bound.
        alibi_slopes: (N,), adds -slope_n * |i + a - j| to the scores, where a is the alignment of the mask (0 without
            one). They get no gradient.
        score_mod: a function (score, batch, head, query, key) -> score of single numbers, with Python's operators and
            `keras.ops`; the indices are int32, `head` that of the query. It is traced once. Arrays and variables that
            it reads get gradients. A result of -1e30 or less hides the key as -inf does. See [score
            functions](../score_mod.md). Default: none.
        dropout: the fraction of the weights to drop, 0 <= dropout < 1; the others are divided by 1 - dropout.
        seed: of the dropout: an integer, or an integer tensor of shape () or (2,). The same seed drops the same
            weights. Default: a new one from Keras' global generator at each (eager) call.
        layout: "BTNH" as above, or "BNTH" for query (B, N, T, H), key (B, K, S, H), value (B, K, S, V).
        return_lse: also return the log-sum-exp of each row of scores.

    Returns: (B, T, N, V) in Keras' common dtype of query, key and value; for "BNTH" (B, N, T, V). With `return_lse` a
        pair of that and (B, N, T) in float32 (float64 for float64).

    Raises:
        ValueError, TypeError: for shapes, dtypes or ranges that do not fit, as far as they are known while tracing.

    Numerics: scores, softmax and sums are float32 (float64 for float64) for every input dtype. A query that may attend
        to nothing gets output 0, log-sum-exp -inf and gradient 0. NaN or Inf in a key or value only reaches the
        queries that may attend to it: all their features under a mask, else the features that arithmetic carries it
        to. Differentiable twice in query, key, value, bias and the arrays of `score_mod`.

    Source: Vaswani et al., "Attention Is All You Need", 2017 (Q, K, V, d_k are query, key, value, H); Dao et al.,
        "FlashAttention", 2022, for computing it in blocks; grouped heads: Ainslie et al., 2023; ALiBi: Press et al.,
        2022; soft cap: Gemma 2, 2024.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(1, 5, 2, 4)).astype("float32")
    >>> dot_product_attention(x, x, x, is_causal=True).shape
    TensorShape([1, 5, 2, 4])
    >>> output, lse = dot_product_attention(x, x, x, mask=Mask.lengths([0]), return_lse=True)
    >>> float(abs(output).numpy().max()), float(lse[0, 0, 0])
    (0.0, -inf)
    """
    options: AttentionOptions = {
        "mask": mask,
        "bias": bias,
        "is_causal": is_causal,
        "scale": scale,
        "soft_cap": soft_cap,
        "alibi_slopes": alibi_slopes,
        "score_mod": score_mod,
        "dropout": dropout,
        "seed": seed,
        "layout": layout,
    }
    call = arguments.dot_product(options, query, key, value)
    output, lse = select_implementation(call[0]).attend(*call, return_lse=return_lse)
    output = show(output, *call)
    return (output, lse) if return_lse else output


# The options of a call that names none.
DEFAULT_OPTIONS = defaults_of(dot_product_attention)


@as_written
@takes_options_of(dot_product_attention, AttentionOptions)
def attention_weights(
    query: Annotated[Any, "B T N H"],
    key: Annotated[Any, "B S K H"],
    *,
    heads: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    keys: Sequence[int] | None = None,
    lse: Annotated[Any, "B N T"] = None,
    **options: Unpack[AttentionOptions],
) -> Annotated[Any, "B N T S"]:
    """Return the weights of the values in `dot_product_attention`.

    weight_ij = dropout(softmax_j(cap(scale * q_i . k_j) + bias_ij, over the j that mask allows))

    They are computed separately: asking for weights never changes an output. Memory holds the scores of the chosen
    heads and rows against all keys, or with `lse` against the chosen keys, so choose few of them for long sequences.
    `attention_statistics` summarizes all weights in linear memory.

    Args:
        query, key, {options}: see `dot_product_attention`; with dropout, the same seed gives the weights used there.
        heads: the heads to return, integers in [0, N). Default: all.
        rows: the queries to return, integers in [0, T). Default: all.
        keys: the keys to return, integers in [0, S). Default: all.
        lse: (B, N, T), the log-sum-exp from `dot_product_attention(..., return_lse=True)` for the same arguments. It
            avoids computing the scores of other keys. Default: computed from whole rows.

    Returns: (B, N or len(heads), T or len(rows), S or len(keys)), float32 (float64 for float64). Each whole row sums
        to 1 without dropout, or to 0 where it may attend to nothing.

    Numerics: with `lse`, a weight has the relative error of e^lse, about |lse| roundings; without it, one rounding.

    Raises:
        ValueError, TypeError: as `dot_product_attention`.

    >>> import numpy as np
    >>> x = np.zeros((1, 3, 2, 4), "float32")
    >>> attention_weights(x, x, is_causal=True, heads=[1], rows=[0, 2]).numpy().round(2).tolist()
    [[[[1.0, 0.0, 0.0], [0.33000001311302185, 0.33000001311302185, 0.33000001311302185]]]]
    """
    call = arguments.dot_product({**DEFAULT_OPTIONS, **options}, query, key)
    return select_for_weights().weights(*call, heads=heads, rows=rows, keys=keys, lse=lse)


class AttentionStatistics(NamedTuple):
    """Statistics of each row of weights, all float32 (float64 for float64).

    Attributes:
        entropy: (B, N, T), -sum_j w_ij ln w_ij in nats: 0 for a row on one key, ln(n) for a row spread evenly over n.
        distance: (B, N, T), sum_j w_ij |i + a - j| in positions, with the alignment a of the mask (0 without one).
        mass: (B, N, T, number of chosen keys), w_ij of the chosen keys.

    >>> import numpy as np
    >>> x = np.zeros((1, 2, 1, 8), "float32")
    >>> entropy, distance, mass = attention_statistics(x, x, keys=[0])
    >>> distance.numpy().tolist(), mass.numpy().tolist()
    ([[[0.5, 0.5]]], [[[[0.5], [0.5]]]])
    """

    entropy: Annotated[Any, "B N T"]
    distance: Annotated[Any, "B N T"]
    mass: Annotated[Any, "B N T *"]


@as_written
@takes_options_of(dot_product_attention, StatisticsOptions)
def attention_statistics(
    query: Annotated[Any, "B T N H"],
    key: Annotated[Any, "B S K H"],
    *,
    keys: Sequence[int] = (),
    **options: Unpack[StatisticsOptions],
) -> AttentionStatistics:
    """Compute entropy, mean distance and mass on chosen keys of every row of attention weights, in linear memory.

    With w = softmax_j(cap(scale * q_i . k_j) + bias_ij, over the j that mask allows), see `AttentionStatistics`.
    They describe the weights before dropout. Keys that the mask rules out for a whole block of queries are skipped,
    and memory holds one block of scores at a time.

    Args:
        query, key, {options}: see `dot_product_attention`.
        keys: the keys whose mass to report, integers in [0, S); for example (0,) for an attention sink.

    Returns: an `AttentionStatistics`. A row that may attend to nothing has 0 in all of them, a row that holds or sees
        NaN or Inf has NaN. No gradient flows through them; a loss may use `attention_weights`.

    Raises:
        ValueError, TypeError: as `dot_product_attention`.

    Source: entropy and distance as in Vig and Belinkov, "Analyzing the Structure of Attention in a Transformer
        Language Model", 2019; mass on the first key: Xiao et al., "Efficient Streaming Language Models with
        Attention Sinks", 2024.

    >>> import numpy as np
    >>> x = np.zeros((1, 4, 1, 8), "float32")  # equal scores: each row spreads evenly over the keys it sees
    >>> rows = attention_statistics(x, x, is_causal=True, keys=[0])
    >>> np.exp(rows.entropy[0, 0]).round(3).tolist(), rows.distance[0, 0].numpy().round(3).tolist()
    ([1.0, 2.0, 3.0, 4.0], [0.0, 0.5, 1.0, 1.5])
    >>> rows.mass[0, 0, :, 0].numpy().round(3).tolist()
    [1.0, 0.5, 0.3330000042915344, 0.25]
    """
    call = arguments.dot_product({**DEFAULT_OPTIONS, **options}, query, key)
    return AttentionStatistics(*select_for_weights().statistics(*call, keys=keys))


@as_written
def scaled_dot_product_attention(
    query: Annotated[Any, "... T H"],
    key: Annotated[Any, "... S H"],
    value: Annotated[Any, "... S V"],
    mask: Any = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    seed: Any = None,
    return_weights: bool = False,
) -> Annotated[Any, "... T V"]:
    """Compute scaled dot-product attention over any leading dimensions.

    output = softmax(scale * query key^T, where mask allows) value

    Args:
        query: (..., T, H); the leading dimensions, if any, are those of key and value too.
        key: (..., S, H).
        value: (..., S, V).
        mask: booleans or integers that broadcast to (..., T, S), True means "attend"; or a `Mask`, whose batch (B)
            is the first leading dimension and whose heads (N) are all others together. `Mask.blocked(x)` takes the
            inverted convention.
        is_causal, scale, dropout, seed: see `dot_product_attention`.
        return_weights: also return the weights, which takes T x S memory.

    Returns: (..., T, V); with `return_weights` a pair of that and (..., T, S).

    Raises:
        ValueError, TypeError: for shapes, dtypes or ranges that do not fit.

    Source: Vaswani et al., "Attention Is All You Need", 2017, equation 1.

    >>> import numpy as np
    >>> x = np.eye(3, dtype="float32")
    >>> output, weights = scaled_dot_product_attention(x, x, x, return_weights=True)
    >>> bool(np.allclose(output, weights))
    True
    """
    (query, key, value), _ = checks.common_type(query=query, key=key, value=value)
    _check_leading(query=query, key=key, value=value)
    leading, length, keys = sizes(query)[:-2], size(query, -2), size(key, -2)
    # The first leading dimension is the batch, the others are heads.
    batch, heads = leading[0] if leading else 1, math.prod(leading[1:])
    # The op needs a known number of heads, not 0. Without one, all leading dimensions become the batch.
    folded = not isinstance(heads, int) or heads == 0
    front = [batch * heads, 1] if folded else [batch, heads]

    def to_rank_4(x: Any, *last: Any) -> Any:
        return x if len(leading) == 2 and not folded else ops.reshape(x, [*front, *last])

    if isinstance(mask, Mask):
        if folded:
            raise ValueError(
                "`mask` must be an array where leading dimensions are unknown or 0. Received: a Mask"
            )
        if len(leading) == 1:  # arrays of rank 3 are (B, T, S)
            mask = arguments.with_heads(mask, [*query.shape[:-1], key.shape[-2]])
    elif mask is not None:
        mask = checks.check_dense("mask", mask)
        checks.check_broadcast("mask", mask, [*query.shape[:-1], key.shape[-2]], "(..., T, S)")
        if folded or len(leading) > 2:
            mask = to_rank_4(ops.broadcast_to(mask, [*leading, length, keys]), length, keys)
        elif len(leading) == 1 and len(mask.shape) == 3:
            mask = mask[:, None]
    options: AttentionOptions = {
        "mask": mask,
        "is_causal": is_causal,
        "scale": scale,
        "dropout": dropout,
        "seed": arguments.draw_seed(dropout, seed),
        "layout": "BNTH",
    }
    lengths = {"query": (query, length), "key": (key, keys), "value": (value, keys)}
    tensors = {name: to_rank_4(x, n, size(x, -1)) for name, (x, n) in lengths.items()}
    output = dot_product_attention(**tensors, **options)
    if len(leading) != 2 or folded:
        output = ops.reshape(output, [*leading, length, size(value, -1)])
    if not return_weights:
        return output
    weights = attention_weights(tensors["query"], tensors["key"], **options)
    return output, ops.reshape(weights, [*leading, length, keys])


def _check_leading(**operands: Any) -> None:
    """Check shapes before axes are added: messages show the caller's shapes."""
    query, letters = operands["query"], {"query": "T, H", "key": "S, H", "value": "S, V"}
    for name, x in operands.items():
        shape = shape_of(x)
        if shape is None or len(shape) < 2:
            raise checks.shape_error(
                f"`{name}` must have shape (..., {letters[name]})", **{name: x}
            )
        wanted = tuple(query.shape)
        if len(shape) != len(wanted) or any(map(checks.differ, shape[:-2], wanted[:-2])):
            raise checks.shape_error(
                f"`{name}` must have the leading dimensions of `query`", query=query, **{name: x}
            )
        if shape[-1] is None:
            raise checks.shape_error(f"`{name}` must have a known number of features", **{name: x})
    checks.check_features_and_length(query, operands["key"], operands["value"], "H", -2)
