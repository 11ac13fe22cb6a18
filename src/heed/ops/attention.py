"""Dot-product attention and its weights."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from heed.ops import _checks, _dropout
from heed.ops._dispatch import Dispatch, choose
from heed.ops._mask import Mask
from heed.ops._mask_arguments import check_dense
from heed.ops._mask_terms import Dense
from heed.ops._native_op import native_op, register_gradients
from heed.ops._portable import attend
from heed.ops._sizes import size, sizes
from heed.ops._tile import Attention, fold, unfold
from heed.ops._watch import Watched, shown
from heed.ops._weights import weights_of
from heed.ops._wire import Wire, write

# The native op for each layout, by the axis of its heads.
_NATIVE = {2: "heed_attention", 1: "heed_attention_heads"}


@tf.autograph.experimental.do_not_convert
def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    soft_cap: float | None = None,
    alibi_slopes: Any = None,
    dropout: float = 0.0,
    seed: Any = None,
    layout: str = "BTNH",
    return_lse: bool = False,
) -> Any:
    """Exact attention that never holds the T x S score matrix.

    output_i = sum_j dropout(softmax_j(cap(scale * q_i . k_j) + bias_ij, over the j that mask allows)) v_j,
    with cap(x) = soft_cap * tanh(x / soft_cap).

    Args:
        query: (B, T, N, H), float16, bfloat16, float32 or float64.
        key: (B, S, K, H); K divides N: query head n uses key head n // (N / K). K = 1 is multi-query attention.
        value: (B, S, K, V); V may differ from H.
        mask: a `Mask`, or booleans or integers that broadcast to (B, N, T, S); True means "attend". Default: all.
        bias: added to the scores, broadcasts to (B, N, T, S), floating-point; -1e30 or less hides the key as -inf
            does. Default: none.
        is_causal: key j is visible to query i only if j <= i; joins `mask`. For another alignment give
            `Mask.causal(align)`.
        scale: what the products are multiplied with; finite, in [-1e30, 1e30] but in float64. Default: 1 / sqrt(H).
        soft_cap: bounds the scaled products to (-soft_cap, soft_cap); > 0, and in [1e-30, 1e30] but in float64.
            Default: no bound.
        alibi_slopes: (N,), adds -slope_n * |i + a - j| to the scores, where a is the alignment of the mask (0 without
            one). Constants: they get no gradient.
        dropout: which share of the weights is dropped, 0 <= dropout < 1; the others are divided by 1 - dropout.
        seed: of the dropout: an integer, or an integer tensor of shape () or (2,). The same seed drops the same
            weights. Default: a new one from Keras' global generator at each (eager) call.
        layout: "BTNH" as above, or "BNTH" for query (B, N, T, H), key (B, K, S, H), value (B, K, S, V).
        return_lse: also return the log-sum-exp of each row of scores.

    Returns: (B, T, N, V) in Keras' common dtype of query, key and value; for "BNTH" (B, N, T, V). With `return_lse` a
        pair of that and (B, N, T) in float32 (float64 for float64).

    Raises:
        ValueError, TypeError: for shapes, dtypes or ranges that do not fit, as far as they are known while tracing.

    Numerics: scores, softmax and sums are float32 (float64 for float64) whatever the input. A query that may attend
        to nothing gets output 0, log-sum-exp -inf and gradient 0. NaN or Inf in a key or value reaches just the
        queries that may attend to it: under a mask all their features, without one those that arithmetic takes it to.
        Differentiable twice in query, key, value and bias.

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
    (query, key, value), result_type = _checks.common_type(query=query, key=key, value=value)
    if result_type == tf.float64:  # also where only the values are
        query, key = tf.cast(query, result_type), tf.cast(key, result_type)
    call = DotCall.of(
        query, key, mask, bias, is_causal, scale, soft_cap, alibi_slopes, dropout, seed, layout
    )
    _checks.check_value(key, value, call.heads_axis)
    inputs = [tf.cast(x, result_type) for x in (query, key, value)]
    dispatch = choose(call.attention, (query.shape[3], value.shape[3]))
    run = call.native if dispatch.implementation == "native" else call.portable
    output, lse = run(inputs, call.bias, return_lse)
    output = shown(output, lambda: call.watched(*inputs))
    return (output, lse) if return_lse else output


@tf.autograph.experimental.do_not_convert
def attention_weights(
    query: Any,
    key: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    soft_cap: float | None = None,
    alibi_slopes: Any = None,
    dropout: float = 0.0,
    seed: Any = None,
    layout: str = "BTNH",
    heads: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    keys: Sequence[int] | None = None,
    lse: Any = None,
) -> tf.Tensor:
    """The weights that `dot_product_attention` gives the values, for looking at them.

    weight_ij = dropout(softmax_j(cap(scale * q_i . k_j) + bias_ij, over the j that mask allows))

    This is a computation of its own: asking for weights never changes an output. It holds the scores of the chosen
    heads and rows against all keys, so choose for long sequences; with `lse` only those of the chosen keys.
    `attention_statistics` sums up all the weights without holding them.

    Args:
        query, key, mask, bias, is_causal, scale, soft_cap, alibi_slopes, dropout, seed, layout: as given to
            `dot_product_attention`; with dropout, the same seed gives the weights that were used there.
        heads: which heads, integers in [0, N). Default: all.
        rows: which queries, integers in [0, T). Default: all.
        keys: which keys, integers in [0, S). Default: all.
        lse: (B, N, T), the log-sum-exp that `dot_product_attention(..., return_lse=True)` gave for the same
            arguments. The scores of keys that are not chosen are then not computed. Default: from the whole rows.

    Returns: (B, N or len(heads), T or len(rows), S or len(keys)), float32 (float64 for float64). Each whole row sums
        to 1 without dropout, or to 0 where it may attend to nothing.

    Numerics: with `lse`, a weight has the relative error of e^lse, which is about |lse| roundings; without it, one.

    Raises:
        ValueError, TypeError: as `dot_product_attention`.

    >>> import numpy as np
    >>> x = np.zeros((1, 3, 2, 4), "float32")
    >>> attention_weights(x, x, is_causal=True, heads=[1], rows=[0, 2]).numpy().round(2).tolist()
    [[[[1.0, 0.0, 0.0], [0.33000001311302185, 0.33000001311302185, 0.33000001311302185]]]]
    """
    (query, key), _ = _checks.common_type(query=query, key=key)
    call = DotCall.of(
        query, key, mask, bias, is_causal, scale, soft_cap, alibi_slopes, dropout, seed, layout
    )
    return call.weights(query, key, heads=heads, rows=rows, keys=keys, lse=lse)


@tf.autograph.experimental.do_not_convert
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    seed: Any = None,
    return_weights: bool = False,
) -> Any:
    """Scaled dot-product attention over any leading dimensions.

    output = softmax(scale * query key^T, where mask allows) value

    Args:
        query: (..., T, H); the leading dimensions, if any, are those of key and value too.
        key: (..., S, H).
        value: (..., S, V).
        mask: booleans or integers that broadcast to (..., T, S), True means "attend"; or a `Mask`, whose batch (B)
            is the first leading dimension and whose heads (N) are all the others together. `Mask.blocked(x)` takes
            the other convention.
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
    (query, key, value), _ = _checks.common_type(query=query, key=key, value=value)
    rank = query.shape.rank
    for name, x, letters in (
        ("query", query, "T, H"),
        ("key", key, "S, H"),
        ("value", value, "S, V"),
    ):
        if x.shape.rank is None or x.shape.rank < 2:
            raise _checks.bad(f"`{name}` must have shape (..., {letters})", **{name: x})
        if x.shape.rank != rank or any(map(_checks.differ, x.shape[:-2], query.shape[:-2])):
            raise _checks.bad(
                f"`{name}` must have the leading dimensions of `query`", query=query, **{name: x}
            )
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.shape[-1] is None:
            raise _checks.bad(f"`{name}` must have a known number of features", **{name: x})
    # In the caller's shapes: what follows adds axes.
    if query.shape[-1] != key.shape[-1]:
        raise _checks.bad("`key` must have as many features as `query` (H)", query=query, key=key)
    if _checks.differ(value.shape[-2], key.shape[-2]):
        raise _checks.bad("`value` must be as long as `key` (S)", key=key, value=value)
    leading, length, keys = sizes(query)[:-2], size(query, -2), size(key, -2)
    # The first leading dimension is the batch, the others are heads.
    batch = leading[0] if leading else 1
    others = leading[1:]
    heads: Any = 1
    for n in others:
        heads = heads * n
    fold_into_batch = not isinstance(heads, int) or heads == 0

    def four(x: tf.Tensor, *last: Any) -> tf.Tensor:
        shape = [batch * heads, 1, *last] if fold_into_batch else [batch, heads, *last]
        return tf.reshape(x, tf.stack(shape))

    if mask is not None and not isinstance(mask, Mask):
        allowed = check_dense("mask", mask)
        _checks.check_broadcast("mask", allowed, [*query.shape[:-1], key.shape[-2]], "(..., T, S)")
        if rank > 4 or fold_into_batch:
            allowed = four(
                tf.broadcast_to(allowed, tf.stack([*leading, length, keys])), length, keys
            )
        elif rank == 3 and allowed.shape.rank == 3:
            allowed = allowed[:, None]
        mask = Mask.dense(allowed)
    elif fold_into_batch and mask is not None:
        raise ValueError(
            "`mask` must be an array where leading dimensions are unknown or 0. Received: a Mask"
        )
    elif mask is not None and rank == 3:  # its arrays of rank 3 are (B, T, S), as plain ones are
        rules = []
        for term in mask.terms:
            if isinstance(term, Dense) and term.array.shape.rank <= 3:
                target = [query.shape[0], query.shape[1], key.shape[1]]
                _checks.check_broadcast("mask", term.array, target, "(B, T, S)")
                if term.array.shape.rank == 3:
                    term = Dense(term.array[:, None])
            rules.append(term)
        mask = Mask(rules)
    options: dict[str, Any] = {
        "mask": mask,
        "is_causal": is_causal,
        "scale": scale,
        "dropout": dropout,
    }
    options |= {"seed": drawn_seed(dropout, seed), "layout": "BNTH"}
    four_query, four_key = four(query, length, size(query, -1)), four(key, keys, size(key, -1))
    output = dot_product_attention(
        four_query, four_key, four(value, keys, size(value, -1)), **options
    )
    output = tf.reshape(output, tf.stack([*leading, length, size(value, -1)]))
    if not return_weights:
        return output
    weights = attention_weights(four_query, four_key, **options)
    return output, tf.reshape(weights, tf.stack([*leading, length, keys]))


def dispatch_of(query: Any, key: Any, value: Any, **options: Any) -> Dispatch:
    """See `explain_dispatch`."""
    defaults: dict[str, Any] = dict.fromkeys(
        ("mask", "bias", "scale", "soft_cap", "alibi_slopes", "seed"), None
    ) | {"is_causal": False, "dropout": 0.0, "layout": "BTNH", "return_lse": False}
    unknown = sorted(set(options) - set(defaults))
    if unknown:
        raise TypeError(
            f"`options` must be arguments of dot_product_attention. Received: {', '.join(unknown)}"
        )
    (query, key, value), _ = _checks.common_type(query=query, key=key, value=value)
    arguments = defaults | options
    del arguments["return_lse"]
    call = DotCall.of(query, key, **arguments)
    _checks.check_value(key, value, call.heads_axis)
    return choose(call.attention, (query.shape[3], value.shape[3]))


def drawn_seed(rate: float, seed: Any) -> Any:
    """The seed itself; where dropout needs one and none was given, a new one from Keras' global generator."""
    if not rate or seed is not None:
        return seed
    return keras.random.randint((2,), -(2**31), 2**31 - 1, dtype="int32")


@dataclasses.dataclass(frozen=True)
class DotCall:
    """The checked arguments of a dot-product attention, but for the values."""

    attention: Attention
    score: DotScore
    bias: tf.Tensor | None
    heads_axis: int
    dtype: tf.DType
    scores_per_pair: int

    @classmethod
    def of(
        cls,
        query: tf.Tensor,
        key: tf.Tensor,
        mask: Any,
        bias: Any,
        is_causal: bool,
        scale: float | None,
        soft_cap: float | None,
        alibi_slopes: Any,
        dropout: float,
        seed: Any,
        layout: str,
    ) -> DotCall:
        """Checks everything that `dot_product_attention` takes, but for the values."""
        _checks.check_layout(layout)
        heads_axis = 2 if layout == "BTNH" else 1
        _checks.check_query_key(query, key, heads_axis)
        dtype = _checks.compute_type(_checks.common_type(query=query, key=key)[1])
        heads, groups = query.shape[heads_axis], key.shape[heads_axis]
        length_axis = 3 - heads_axis
        target = [query.shape[0], heads, query.shape[length_axis], key.shape[length_axis]]
        mask = _checks.check_mask(mask, target, "(B, N, T, S)")
        if is_causal:
            mask = Mask.causal() if mask is None else mask & Mask.causal()
        rate = _checks.check_rate(dropout)
        words = None
        if rate:
            words = _dropout.seed_words(_checks.check_seed(drawn_seed(rate, seed)))
        if alibi_slopes is not None:
            alibi_slopes = tf.cast(tf.convert_to_tensor(alibi_slopes), dtype)
            if alibi_slopes.shape.as_list() != [heads]:
                raise _checks.bad(
                    f"`alibi_slopes` must have shape (N,) = ({heads},)", alibi_slopes=alibi_slopes
                )
        lengths = (size(query, length_axis), size(key, length_axis))
        score = DotScore(
            _checks.check_scale(scale, query.shape[3]), _checks.check_soft_cap(soft_cap)
        )
        _checks.check_magnitude("scale", score.scale, 0, dtype)
        _checks.check_magnitude("soft_cap", score.soft_cap, 1e-30, dtype)
        attention = Attention(
            score, mask, alibi_slopes, rate, words, (groups, heads // groups), lengths
        )
        checked_bias = _checks.check_bias(bias, target, (size(query, 0), heads, *lengths), dtype)
        return cls.for_batch(query.shape[0], attention, score, checked_bias, heads_axis, dtype)

    @classmethod
    def for_batch(
        cls,
        batch: int | None,
        attention: Attention,
        score: DotScore,
        bias: tf.Tensor | None,
        heads_axis: int,
        dtype: tf.DType,
    ) -> DotCall:
        """Of checked arguments; `batch` may not be known."""
        groups, members = attention.heads
        scores_per_pair = max(1, (8 if batch is None else batch) * groups * members)
        return cls(attention, score, bias, heads_axis, dtype, scores_per_pair)

    def portable(
        self, inputs: Sequence[tf.Tensor], bias: tf.Tensor | None, return_lse: bool
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Output in the layout and dtype of the inputs, and the log-sum-exp (B, N, T) or None."""
        query, key, value = inputs
        results = attend(
            self.attention,
            self._split_query(query),
            self._heads_first(key),
            self._heads_first(value),
            bias,
            scores_per_pair=self.scores_per_pair,
            return_lse=return_lse,
        )
        output = tf.cast(self.attention.join_heads(results[0]), query.dtype)
        if self.heads_axis == 2:
            output = tf.transpose(output, (0, 2, 1, 3))
        return output, self.attention.join_heads(results[1])[..., 0] if return_lse else None

    def native(
        self, inputs: Sequence[tf.Tensor], bias: tf.Tensor | None, return_lse: bool
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """The same from the native kernels."""
        wire = write(
            self.attention,
            self.dtype,
            bias,
            scale=self.score.scale,
            soft_cap=self.score.soft_cap,
        )
        output, lse, _ = native_op(_NATIVE[self.heads_axis], inputs, wire)
        return output, lse if return_lse else None

    @staticmethod
    def portable_of(wire: Wire, tensors: Sequence[tf.Tensor], heads_axis: int) -> Any:
        """Output and log-sum-exp of what a native op was told, for query, key, value and a bias if there is one."""
        query, key, value, *bias = tensors
        score = DotScore(*wire.scale_and_cap)
        heads, groups = query.shape[heads_axis], key.shape[heads_axis]
        attention = Attention(
            score,
            wire.mask,
            wire.slopes,
            *wire.dropout,
            heads=(groups, heads // groups),
            lengths=(size(query, 3 - heads_axis), size(key, 3 - heads_axis)),
        )
        dtype = _checks.compute_type(query.dtype)
        call = DotCall.for_batch(query.shape[0], attention, score, None, heads_axis, dtype)
        return call.portable((query, key, value), bias[0] if bias else None, True)

    def weights(self, query: tf.Tensor, key: tf.Tensor, **choice: Any) -> tf.Tensor:
        """See `attention_weights`."""
        return weights_of(self.attention, *self.split(query, key), self.bias, (), **choice)

    def watched(self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> Watched:
        """This call for one who looks on."""
        weights = functools.partial(self.weights, query, key)
        return Watched(self.attention, value, self.heads_axis, weights)

    def split(self, query: tf.Tensor, key: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Query (B, K, G, T, H) and key (B, K, S, H) in the compute dtype, from the call's layout."""
        return self._split_query(query), self._heads_first(key)

    def _heads_first(self, x: tf.Tensor) -> tf.Tensor:
        """(B, S, K, H) or (B, K, S, H) to (B, K, S, H) in the compute dtype."""
        x = tf.cast(x, self.dtype)
        return tf.transpose(x, (0, 2, 1, 3)) if self.heads_axis == 2 else x

    def _split_query(self, x: tf.Tensor) -> tf.Tensor:
        """To (B, K, G, T, H)."""
        x = self._heads_first(x)
        batch, _, length, width = sizes(x)
        return tf.reshape(x, tf.stack([batch, *self.attention.heads, length, width]))


@dataclasses.dataclass(frozen=True)
class DotScore:
    """scale * q . k, capped: query (B, K, G, t, H) and key (B, K, s, H) to (B, K, G, t, s)."""

    scale: float
    soft_cap: float | None

    def __call__(self, query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Scores of one block."""
        # NumPy's numbers, for TensorFlow keeps every Python number that it has met, for ever.
        real = query.dtype.as_numpy_dtype
        # The scale goes to the query: fewer numbers than the scores.
        scaled = fold(query * real(self.scale))
        scores = unfold(tf.matmul(scaled, key, transpose_b=True), query.shape[2])
        if self.soft_cap is None:
            return scores
        return real(self.soft_cap) * tf.tanh(scores * real(1 / self.soft_cap))


for _axis, _name in _NATIVE.items():
    register_gradients(_name, functools.partial(DotCall.portable_of, heads_axis=_axis), 0)
