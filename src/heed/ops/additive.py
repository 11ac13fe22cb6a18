"""Additive (Bahdanau) attention and its weights."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from heed.ops import _checks, _dropout
from heed.ops._dispatch import Dispatch, choose
from heed.ops._mask import Mask, as_mask
from heed.ops._mask_terms import Dense
from heed.ops._native_op import native_op, register_gradients
from heed.ops._portable import attend
from heed.ops._sizes import size
from heed.ops._tile import Attention
from heed.ops._watch import Watched, shown
from heed.ops._weights import weights_of
from heed.ops._wire import Wire, write
from heed.ops.attention import drawn_seed


@tf.autograph.experimental.do_not_convert
def additive_attention(
    query: Any,
    key: Any,
    value: Any,
    score_vector: Any,
    *,
    bias: Any = None,
    mask: Any = None,
    dropout: float = 0.0,
    seed: Any = None,
    return_lse: bool = False,
) -> Any:
    """Additive attention that never holds the (B, T, S, U) tensor.

    output_i = sum_j dropout(softmax_j(sum_u score_vector_u * tanh(query_iu + key_ju + bias_u))) value_j

    Args:
        query: (B, T, U), already projected; floating-point.
        key: (B, S, U), already projected.
        value: (B, S, V).
        score_vector: (U,).
        bias: (U,), added inside the tanh. Default: none.
        mask: a `Mask`, or booleans or integers that broadcast to (B, T, S); True means "attend". Default: all.
        dropout, seed: see `dot_product_attention`.
        return_lse: also return the log-sum-exp of each row of scores.

    Returns: (B, T, V) in Keras' common dtype of query, key and value; with `return_lse` a pair of that and (B, T)
        in float32 (float64 for float64).

    Raises:
        ValueError, TypeError: for shapes, dtypes or ranges that do not fit.

    Numerics: as `dot_product_attention`. Differentiable twice in query, key, value, score_vector and bias.

    Source: Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and Translate", 2015, section
        A.1.2 (v_a is score_vector, W_a s and U_a h are query and key).

    >>> import numpy as np
    >>> q, k, v = (np.ones(shape, "float32") for shape in ((2, 3, 4), (2, 5, 4), (2, 5, 6)))
    >>> additive_attention(q, k, v, np.ones(4, "float32"), mask=Mask.lengths([5, 2])).shape
    TensorShape([2, 3, 6])
    """
    call, inputs = _prepared(query, key, value, score_vector, bias, mask, dropout, seed)
    dispatch = choose(call.attention, (inputs[0].shape[2], inputs[2].shape[2]))
    run = call.native if dispatch.implementation == "native" else call.portable
    output, lse = run([*inputs, *call.parameters], return_lse)
    output = shown(output, lambda: call.watched(*inputs))
    return (output, lse) if return_lse else output


@tf.autograph.experimental.do_not_convert
def additive_attention_weights(
    query: Any,
    key: Any,
    score_vector: Any,
    *,
    bias: Any = None,
    mask: Any = None,
    dropout: float = 0.0,
    seed: Any = None,
    rows: Sequence[int] | None = None,
) -> tf.Tensor:
    """The weights that `additive_attention` gives the values, for looking at them.

    Args:
        query, key, score_vector, bias, mask, dropout, seed: as given to `additive_attention`.
        rows: which queries, integers in [0, T). Default: all. The whole (B, rows, S, U) tensor of these rows is held.

    Returns: (B, T or len(rows), S), float32 (float64 for float64).

    Raises:
        ValueError, TypeError: as `additive_attention`.

    >>> import numpy as np
    >>> q, k = np.ones((1, 1, 4), "float32"), np.ones((1, 2, 4), "float32")
    >>> additive_attention_weights(q, k, np.ones(4, "float32")).numpy().tolist()
    [[[0.5, 0.5]]]
    """
    (query, key), _ = _checks.common_type(query=query, key=key)
    call = _Call.of(query, key, score_vector, bias, mask, dropout, seed)
    return call.weights(query, key, rows=rows)[:, 0]


def dispatch_of(
    query: Any,
    key: Any,
    value: Any,
    score_vector: Any,
    *,
    bias: Any = None,
    mask: Any = None,
    dropout: float = 0.0,
    seed: Any = None,
    return_lse: bool = False,
) -> Dispatch:
    """See `explain_dispatch`."""
    call, inputs = _prepared(query, key, value, score_vector, bias, mask, dropout, seed)
    return choose(call.attention, (inputs[0].shape[2], inputs[2].shape[2]))


def _prepared(
    query: Any, key: Any, value: Any, *options: Any
) -> tuple[_Call, tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
    """The checked call, and query, key and value in the dtype of the result."""
    (query, key, value), result_type = _checks.common_type(query=query, key=key, value=value)
    query, key = tf.cast(query, result_type), tf.cast(key, result_type)
    call = _Call.of(query, key, *options)
    _checks.check_rank("value", value, 3, "(B, S, V)")
    if _checks.differ(value.shape[0], key.shape[0]) or _checks.differ(value.shape[1], key.shape[1]):
        raise _checks.bad(
            "`value` must have the batch size and length of `key` (B, S)", key=key, value=value
        )
    if value.shape[2] is None:
        raise _checks.bad("`value` must have a known number of features", value=value)
    return call, (query, key, tf.cast(value, result_type))


@dataclasses.dataclass(frozen=True)
class _Call:
    """The checked arguments, but for query, key and value.

    Attributes:
        attention: of one head.
        parameters: score vector (U,) and, if there is one, bias (U,), in the compute dtype.
        scores_per_pair: numbers that the portable form holds for one pair of query and key at once.
    """

    attention: Attention
    parameters: tuple[tf.Tensor, ...]
    scores_per_pair: int

    @classmethod
    def of(
        cls,
        query: tf.Tensor,
        key: tf.Tensor,
        score_vector: Any,
        bias: Any,
        mask: Any,
        dropout: float,
        seed: Any,
    ) -> _Call:
        _checks.check_rank("query", query, 3, "(B, T, U)")
        _checks.check_rank("key", key, 3, "(B, S, U)")
        if query.shape[2] is None or query.shape[2] != key.shape[2]:
            raise _checks.bad(
                "`key` must have as many features as `query` (U)", query=query, key=key
            )
        if _checks.differ(query.shape[0], key.shape[0]):
            raise _checks.bad("`key` must have the batch size of `query` (B)", query=query, key=key)
        units = query.shape[2]
        dtype = _checks.compute_type(_checks.common_type(query=query, key=key)[1])
        parameters = [_checks.check_vector("score_vector", score_vector, units, "U", dtype)]
        if bias is not None:
            parameters.append(_checks.check_vector("bias", bias, units, "U", dtype))
        target = [query.shape[0], query.shape[1], key.shape[1]]
        rate = _checks.check_rate(dropout)
        words = _dropout.seed_words(_checks.check_seed(drawn_seed(rate, seed))) if rate else None
        lengths = (size(query, 1), size(key, 1))
        attention = Attention(
            additive_score, _with_head(mask, target), None, rate, words, (1, 1), lengths
        )
        return cls.for_batch(query.shape, attention, parameters)

    @classmethod
    def for_batch(
        cls, query_shape: tf.TensorShape, attention: Attention, parameters: Sequence[tf.Tensor]
    ) -> _Call:
        """Of checked arguments; the batch size may not be known."""
        batch, _, units = query_shape
        scores_per_pair = max(1, (8 if batch is None else batch) * units)
        return cls(attention, tuple(parameters), scores_per_pair)

    def portable(
        self, tensors: Sequence[tf.Tensor], return_lse: bool
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Output (B, T, V) in the dtype of the query, and the log-sum-exp (B, T) or None.

        `tensors` are query, key, value and the parameters.
        """
        query, key, value, *parameters = tensors
        results = attend(
            self.attention,
            *self.split(query, key, parameters),
            tf.cast(value, parameters[0].dtype)[:, None],
            None,
            parameters[:1],
            scores_per_pair=self.scores_per_pair,
            return_lse=return_lse,
        )
        output = tf.cast(results[0][:, 0, 0], query.dtype)
        return output, results[1][:, 0, 0, :, 0] if return_lse else None

    def native(
        self, tensors: Sequence[tf.Tensor], return_lse: bool
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """The same from the native kernels."""
        query, key, value, score_vector, *bias = tensors
        wire = write(
            self.attention,
            score_vector.dtype,
            bias[0] if bias else None,
            score_vector=score_vector,
        )
        output, lse, _ = native_op("heed_additive", (query, key, value), wire)
        return output, lse if return_lse else None

    @classmethod
    def portable_of(cls, wire: Wire, tensors: Sequence[tf.Tensor]) -> Any:
        """Output and log-sum-exp of what a native op was told, for `tensors` as `portable` takes them."""
        query, key, _, *parameters = tensors
        lengths = (size(query, 1), size(key, 1))
        attention = Attention(
            additive_score, wire.mask, None, *wire.dropout, heads=(1, 1), lengths=lengths
        )
        return cls.for_batch(query.shape, attention, parameters).portable(tensors, True)

    def weights(self, query: tf.Tensor, key: tf.Tensor, **choice: Any) -> tf.Tensor:
        """Weights (B, 1, T or len(rows), S)."""
        query, key = self.split(query, key, self.parameters)
        return weights_of(self.attention, query, key, None, self.parameters[:1], **choice)

    def watched(self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> Watched:
        """This call for one who looks on."""
        weights = functools.partial(self.weights, query, key)
        return Watched(self.attention, value, None, weights, numbers_per_weight=query.shape[2])

    @staticmethod
    def split(
        query: tf.Tensor, key: tf.Tensor, parameters: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Query (B, 1, 1, T, U), with the bias, and key (B, 1, S, U), in the compute dtype."""
        score_vector, *bias = parameters
        query, key = tf.cast(query, score_vector.dtype), tf.cast(key, score_vector.dtype)
        if bias:
            query += bias[0]
        return query[:, None, None], key[:, None]


def additive_score(query: tf.Tensor, key: tf.Tensor, score_vector: tf.Tensor) -> tf.Tensor:
    """Query (B, 1, 1, t, U), key (B, 1, s, U), score_vector (U,) to (B, 1, 1, t, s)."""
    hidden = tf.tanh(query[..., :, None, :] + key[:, :, None, None])
    return tf.linalg.matvec(hidden, score_vector)


def _with_head(mask: Any, target: list[Any]) -> Mask | None:
    """A mask over (B, T, S) as one over (B, 1, T, S)."""
    if mask is None:
        return None
    rules = []
    for term in as_mask(mask).terms:
        if isinstance(term, Dense):
            _checks.check_broadcast("mask", term.array, target, "(B, T, S)")
            if term.array.shape.rank == 3:
                term = Dense(term.array[:, None])
        rules.append(term)
    return _checks.check_mask(Mask(rules), [target[0], 1, *target[1:]], "(B, 1, T, S)")


register_gradients("heed_additive", _Call.portable_of, 1)
