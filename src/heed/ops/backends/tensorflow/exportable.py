"""Attention as one expression, for graphs that leave TensorFlow: two products, one softmax, and a mask made of shapes.

It has no loops, custom gradients or run-time checks, and holds all scores at once. `heed.export` uses it: other
runtimes know these operations, for any batch and lengths, and can replace `attention` as one piece by their own.

Numbers must be finite: a NaN hidden by a mask reaches the output.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import tensorflow as tf

from heed.ops import checks
from heed.ops.backends.protocol import OutputAndLse
from heed.ops.backends.shared.block import HIDING_BIAS, prepare
from heed.ops.backends.tensorflow.portable.implementation import Portable, PortableFusedOps
from heed.ops.mask import Mask
from heed.ops.mask_rules import as_column, offset
from heed.ops.scores import DotScore
from heed.ops.sizes import Size, Span, size, sizes
from heed.ops.spec import AttentionSpec, Tensors

# The score of a hidden pair. Finite, so that the softmax of a row without keys is a number, which then becomes 0.
_MASK_VALUE = -1e38

Core = Callable[..., tf.Tensor]


class Expression(NamedTuple):
    """The options of `attention`."""

    score: DotScore  # the products of query and key
    is_causal: bool  # whether query i only sees keys j <= i, in addition to `visible`


def attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    visible: tf.Tensor | None,
    bias: tf.Tensor | None,
    expression: Expression,
) -> tf.Tensor:
    """Return attention of scaled products.

    Args:
        query: (B, N, T, H).
        key: (B, K, S, H), where K divides N.
        value: (B, K, S, V).
        visible: booleans that broadcast to (B, N, T, S), or None for "everything".
        bias: finite numbers of the dtype of query that broadcast to (B, N, T, S), or None.
        expression: the options.

    Returns:
        (B, N, T, V); 0 for a query that sees nothing.
    """
    scores = _scores(query, key, bias, expression)
    return _apply_weights(_softmax(scores, visible, expression.is_causal), value)


# The function to call in place of `attention`.
_core: ContextVar[Core] = ContextVar("heed_exportable_core", default=attention)
# The caches of `grow_caches`, by the reference of their enlarged tensors.
_grown: ContextVar[dict[Any, tf.Tensor] | None] = ContextVar("heed_exportable_grown", default=None)


@contextlib.contextmanager
def replace_attention(function: Core) -> Iterator[None]:
    """Replace `attention` by `function` inside the `with` block."""
    token = _core.set(function)
    try:
        yield
    finally:
        _core.reset(token)


@contextlib.contextmanager
def grow_caches() -> Iterator[Callable[[tf.Tensor, Size], tf.Tensor]]:
    """Let caches (B, P, ...) of P entries grow inside the `with` block: updates are appended.

    Yields a function of a cache and the number of entries to be written, which returns the cache with room for them,
    for models that read its length. Writing into that tensor appends to the original cache.
    """
    grown: dict[Any, tf.Tensor] = {}

    def with_room(cache: tf.Tensor, count: Size) -> tf.Tensor:
        room = tf.zeros(tf.stack([size(cache, 0), count, *sizes(cache)[2:]]), cache.dtype)
        whole = tf.concat([cache, room], axis=1)
        grown[whole.ref()] = cache
        return whole

    token = _grown.set(grown)
    try:
        yield with_room
    finally:
        _grown.reset(token)


class Exportable(Portable):
    """Attention in operations that converters of graphs know."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        """Refuse dropout."""
        return ["it has no dropout"] if spec is not None and spec.dropout else []

    def attend(self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool) -> OutputAndLse:
        query, key, value = (_with_heads(x, spec) for x in tensors[:3])
        visible, is_causal = _visible(spec, query, key)
        if (product := spec.score.product) is not None:
            bias, visible = _bias(spec, tensors, query, key, visible)
            expression = Expression(product, is_causal)
            output = _core.get()(query, key, value, visible, bias, expression)
            scores = _scores(query, key, bias, expression) if return_lse else None
        else:
            scores, visible = _other_scores(spec, tensors, query, key, visible)
            output = _apply_weights(_softmax(scores, visible, is_causal), value)
        output = tf.cast(_without_heads(output, spec), tensors.query.dtype)
        if not return_lse:
            return output, None
        lse = _lse(scores, visible, is_causal)
        return output, lse[:, 0] if spec.heads_axis is None else lse

    def weights(
        self, spec: AttentionSpec, tensors: Tensors, *, lse: Any, **chosen: Sequence[int] | None
    ) -> tf.Tensor:
        query, key = (_with_heads(x, spec) for x in tensors[:2])
        visible, is_causal = _visible(spec, query, key)
        if (product := spec.score.product) is not None:
            bias, visible = _bias(spec, tensors, query, key, visible)
            scores = _scores(query, key, bias, Expression(product, is_causal))
        else:
            scores, visible = _other_scores(spec, tensors, query, key, visible)
        weights = _softmax(scores, visible, is_causal)
        for axis, name in enumerate(("heads", "rows", "keys"), start=1):
            if chosen[name] is not None:
                indices = checks.check_indices(name, chosen[name], size(weights, axis))
                weights = tf.gather(weights, tf.constant(indices, tf.int32), axis=axis)
        return weights


class ExportableFusedOps(PortableFusedOps):
    """Fused row-wise ops in operations that converters of graphs know."""

    def write(self, cache: tf.Tensor, update: tf.Tensor, index: tf.Tensor) -> tf.Tensor | None:
        """Return the updated cache; a growing one is concatenated with the update."""
        before = (_grown.get() or {}).get(cache.ref())
        return None if before is None else tf.concat([before, update], axis=1)


def _with_heads(x: tf.Tensor, spec: AttentionSpec) -> tf.Tensor:
    """Return (B, heads, T or S, features) in the spec's dtype."""
    x = tf.cast(x, spec.dtype)
    if spec.heads_axis is None:
        return tf.expand_dims(x, 1)
    return _swap_heads(x, 2) if spec.heads_axis == 2 else x


def _without_heads(x: tf.Tensor, spec: AttentionSpec) -> tf.Tensor:
    """Return the inverse, of the output."""
    if spec.heads_axis is None:
        return tf.squeeze(x, 1)
    return _swap_heads(x, 1) if spec.heads_axis == 2 else x


def _swap_heads(x: tf.Tensor, heads_axis: int) -> tf.Tensor:
    """Map (B, T, N, H) to (B, N, T, H), and back."""
    if x.shape[heads_axis] == 1:
        # LiteRT's converter fails where an axis is transposed and then squeezed.
        return tf.expand_dims(tf.squeeze(x, heads_axis), 3 - heads_axis)
    return tf.transpose(x, (0, 2, 1, 3))


def _visible(
    spec: AttentionSpec, query: tf.Tensor, key: tf.Tensor
) -> tuple[tf.Tensor | None, bool]:
    """Return booleans that broadcast to (B, N, T, S), or None; and whether a causal mask is added."""
    if spec.mask is None:
        return None, False
    rules = spec.mask.rules
    others = [rule for rule in rules if not rule.is_causal]
    lengths = size(query, 2), size(key, 2)
    visible = Mask(others).visible(Span(0, lengths[0]), Span(0, lengths[1]), *lengths)
    return visible, len(others) < len(rules)


def _bias(
    spec: AttentionSpec,
    tensors: Tensors,
    query: tf.Tensor,
    key: tf.Tensor,
    visible: tf.Tensor | None,
) -> tuple[tf.Tensor | None, tf.Tensor | None]:
    """Return the finite numbers to add to the scores, and the visible pairs, without those that the bias hides."""
    bias = tensors.bias
    if bias is not None:
        seen = bias > HIDING_BIAS
        visible = seen if visible is None else tf.logical_and(visible, seen)
        bias = tf.maximum(bias, tf.constant(HIDING_BIAS, bias.dtype))
    if tensors.slopes is not None:
        align = 0 if spec.mask is None else spec.mask.alignment
        lengths = size(query, 2), size(key, 2)
        here = tf.range(lengths[0])[None, None, :, None] + as_column(offset(align, *lengths))
        distance = tf.cast(tf.abs(here - tf.range(lengths[1])), query.dtype)
        alibi = -tf.reshape(tensors.slopes, (1, -1, 1, 1)) * distance
        bias = alibi if bias is None else bias + alibi
    return bias, visible


def _scores(
    query: tf.Tensor, key: tf.Tensor, bias: tf.Tensor | None, expression: Expression
) -> tf.Tensor:
    """Return (B, N, T, S)."""
    scaled = query * tf.constant(expression.score.scale, query.dtype)
    products = _unfold(tf.matmul(_fold(scaled, key), key, transpose_b=True), query)
    scores = expression.score.cap(products)
    return scores if bias is None else scores + bias


def _other_scores(
    spec: AttentionSpec,
    tensors: Tensors,
    query: tf.Tensor,
    key: tf.Tensor,
    visible: tf.Tensor | None,
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Return (B, N, T, S), finite, and the visible pairs, without those that bias or score hide."""
    attention, operands = prepare(spec, tensors)
    found = attention.scores(attention.whole(operands, guarded=False), None)
    scores = attention.join_heads(found)
    bias, visible = _bias(spec, tensors._replace(bias=operands.bias), query, key, visible)
    if spec.score.hides:
        seen = tf.not_equal(scores, -math.inf)
        visible = seen if visible is None else tf.logical_and(visible, seen)
        scores = tf.where(seen, scores, tf.zeros((), scores.dtype))
    return scores if bias is None else scores + bias, visible


def _softmax(scores: tf.Tensor, visible: tf.Tensor | None, is_causal: bool) -> tf.Tensor:
    """Return (B, N, T, S), 0 where nothing is visible."""
    visible = _with_causal(scores, visible, is_causal)
    if visible is None:
        return tf.nn.softmax(scores)
    weights = tf.nn.softmax(tf.where(visible, scores, tf.constant(_MASK_VALUE, scores.dtype)))
    return weights * tf.cast(visible, scores.dtype)


def _lse(scores: tf.Tensor, visible: tf.Tensor | None, is_causal: bool) -> tf.Tensor:
    """Return (B, N, T), -inf where nothing is visible."""
    visible = _with_causal(scores, visible, is_causal)
    if visible is None:
        return tf.reduce_logsumexp(scores, axis=-1)
    # -inf comes from the logarithm of 0: LiteRT's converter makes constants finite.
    scores = tf.where(visible, scores, tf.constant(_MASK_VALUE, scores.dtype))
    most = tf.reduce_max(scores, axis=-1, keepdims=True)
    total = tf.reduce_sum(tf.exp(scores - most) * tf.cast(visible, scores.dtype), axis=-1)
    return tf.math.log(total) + tf.squeeze(most, -1)


def _with_causal(scores: tf.Tensor, visible: tf.Tensor | None, is_causal: bool) -> tf.Tensor | None:
    if not is_causal:
        return visible
    rows, columns = tf.range(size(scores, 2)), tf.range(size(scores, 3))
    before = (columns <= rows[:, None])[None, None]
    return before if visible is None else tf.logical_and(visible, before)


def _apply_weights(weights: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Map weights (B, N, T, S) and value (B, K, S, V) to (B, N, T, V)."""
    return _unfold(tf.matmul(_fold(weights, value), value), weights)


def _fold(x: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Map (B, N, T, X) to (B, K, N / K * T, X): one product serves all query heads of a key head."""
    if x.shape[1] == key.shape[1]:
        return x
    batch, heads, rows, width = sizes(x)
    kv_heads = key.shape[1]
    return tf.reshape(x, tf.stack([batch, kv_heads, heads // kv_heads * rows, width]))


def _unfold(x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Map (B, K, N / K * T, X) to (B, N, T, X), with N and T of `like` (B, N, T, ...)."""
    if x.shape[1] == like.shape[1]:
        return x
    batch, heads, rows, _ = sizes(like)
    return tf.reshape(x, tf.stack([batch, heads, rows, size(x, 3)]))
