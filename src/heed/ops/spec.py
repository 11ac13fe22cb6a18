"""`AttentionSpec`: all that says what an attention computes, apart from its tensors. Built and checked once, here."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import keras
from keras import ops

from heed._numbers import check_real
from heed.ops import checks
from heed.ops.mask import Mask, as_mask
from heed.ops.mask_rules import Dense
from heed.ops.sizes import shape_of

# In place of a value, where only weights are wanted.
NO_VALUE = object()


class DotScore(NamedTuple):
    """scale * q . k, capped at soft_cap if that is a number."""

    scale: float
    soft_cap: float | None


class AdditiveScore(NamedTuple):
    """sum_u score_vector_u * tanh(q_u + k_u + bias_u)."""


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """One attention apart from its tensors: how to score, what to add, what to hide, what to drop.

    It is what every backend receives, and whoever looks on. Hashable; tensors in its mask count by their identity.

    Attributes:
        score: how a query and a key make a score.
        mask: which pairs count, over (B, N, T, S); None for all.
        layout: "BTNH" or "BNTH", where query and output have their heads; "BTU" of additive attention, which has one
            head and no axis for it.
        heads: N, and K that divides it.
        lengths: T and S; None where they are not known while tracing.
        batch: B, or None.
        widths: H (or U) and V; V is 0 where only weights are wanted.
        dtype: "float32" or "float64": of scores, softmax and sums, whatever the input has.
        has_bias: whether something is added to the scores, or inside the tanh of additive attention.
        has_slopes: whether ALiBi's slopes are there.
        dropout: the rate, 0 <= dropout < 1.
    """

    score: DotScore | AdditiveScore
    mask: Mask | None
    layout: str
    heads: tuple[int, int]
    lengths: tuple[int | None, int | None]
    batch: int | None
    widths: tuple[int, int]
    dtype: str
    has_bias: bool
    has_slopes: bool
    dropout: float

    @classmethod
    def of(cls, query: Any, key: Any, value: Any, layout: str, **others: Any) -> AttentionSpec:
        """With sizes as those of the tensors; a value of None is not wanted."""
        axis = checks.HEADS_AXIS.get(layout)
        length_axis = 1 if axis is None else 3 - axis
        return cls(
            layout=layout,
            heads=(1, 1) if axis is None else (query.shape[axis], key.shape[axis]),
            lengths=(query.shape[length_axis], key.shape[length_axis]),
            batch=query.shape[0],
            widths=(query.shape[-1], 0 if value is None else value.shape[-1]),
            **others,
        )

    @property
    def heads_axis(self) -> int | None:
        """Of query, key, value and output; None where they have no heads."""
        return checks.HEADS_AXIS.get(self.layout)

    @property
    def length_axis(self) -> int:
        """T of query and output, S of key and value."""
        return 1 if self.heads_axis is None else 3 - self.heads_axis

    @property
    def kv_heads(self) -> int:
        """K."""
        return self.heads[1]

    @property
    def queries_per_kv(self) -> int:
        """N / K: as many query heads share a key head."""
        return self.heads[0] // self.heads[1]


class Tensors(NamedTuple):
    """What an attention is computed of.

    Attributes:
        query, key: in the layout of the spec and in one dtype.
        value: the same; None where only weights are wanted.
        bias: (B or 1, N or 1, T or 1, S or 1), of additive attention (U,), in the spec's dtype; or None.
        slopes: (N,) of ALiBi in the spec's dtype, or None.
        seed: (2,) uint32 of the dropout, or None.
        score_vector: (U,) of additive attention in the spec's dtype, or None.
    """

    query: Any
    key: Any
    value: Any = None
    bias: Any = None
    slopes: Any = None
    seed: Any = None
    score_vector: Any = None


def dot_product(
    query: Any,
    key: Any,
    value: Any = NO_VALUE,
    *,
    mask: Any,
    bias: Any,
    is_causal: bool,
    scale: float | None,
    soft_cap: float | None,
    alibi_slopes: Any,
    dropout: float,
    seed: Any,
    layout: str,
) -> tuple[AttentionSpec, Tensors]:
    """Checks the arguments of `dot_product_attention`; without a value, those of its weights."""
    checks.check_layout(layout)
    query, key, value, dtype = _operands(query, key, value, layout)
    heads_axis = checks.HEADS_AXIS[layout]
    batch, heads, length = query.shape[0], query.shape[heads_axis], query.shape[3 - heads_axis]
    target = [batch, heads, length, key.shape[3 - heads_axis]]
    mask = _checked_mask(mask, target, "(B, N, T, S)")
    if is_causal:
        mask = Mask.causal() if mask is None else mask & Mask.causal()
    rate, seed = _checked_dropout(dropout, seed)
    slopes = None
    if alibi_slopes is not None:
        slopes = ops.cast(ops.convert_to_tensor(alibi_slopes), dtype)
        if shape_of(slopes) != (heads,):
            raise checks.bad(
                f"`alibi_slopes` must have shape (N,) = ({heads},)", alibi_slopes=slopes
            )
    score = DotScore(
        checks.check_scale(scale, query.shape[3], dtype), checks.check_soft_cap(soft_cap, dtype)
    )
    if bias is not None:
        bias = checks.check_bias(bias, target, dtype)
    spec = AttentionSpec.of(
        query,
        key,
        value,
        layout,
        score=score,
        mask=mask,
        dtype=dtype,
        has_bias=bias is not None,
        has_slopes=slopes is not None,
        dropout=rate,
    )
    return spec, Tensors(query, key, value, bias, slopes, seed)


def additive(
    query: Any,
    key: Any,
    value: Any = NO_VALUE,
    *,
    score_vector: Any,
    bias: Any,
    mask: Any,
    dropout: float,
    seed: Any,
) -> tuple[AttentionSpec, Tensors]:
    """Checks the arguments of `additive_attention`; without a value, those of its weights."""
    query, key, value, dtype = _operands(query, key, value, "BTU")
    score_vector = checks.check_vector("score_vector", score_vector, query.shape[2], "U", dtype)
    if bias is not None:
        bias = checks.check_vector("bias", bias, query.shape[2], "U", dtype)
    if mask is not None:
        batch, *lengths = query.shape[0], query.shape[1], key.shape[1]
        mask = with_heads(as_mask(mask), [batch, *lengths])
        mask = _checked_mask(mask, [batch, 1, *lengths], "(B, 1, T, S)")
    rate, seed = _checked_dropout(dropout, seed)
    spec = AttentionSpec.of(
        query,
        key,
        value,
        "BTU",
        score=AdditiveScore(),
        mask=mask,
        dtype=dtype,
        has_bias=bias is not None,
        has_slopes=False,
        dropout=rate,
    )
    return spec, Tensors(query, key, value, bias, None, seed, score_vector)


def drawn_seed(rate: float, seed: Any) -> Any:
    """The seed itself; where dropout needs one and none was given, a new one from Keras' global generator."""
    if not rate or seed is not None:
        return seed
    return keras.random.randint((2,), -(2**31), 2**31 - 1, dtype="int32")


def with_heads(mask: Mask, target: list[Any]) -> Mask:
    """A mask whose arrays are over (B, T, S), the target, as one over (B, 1, T, S)."""
    rules = []
    for rule in mask.rules:
        if isinstance(rule, Dense):
            checks.check_broadcast("mask", rule.array, target, "(B, T, S)")
            if len(rule.array.shape) == 3:
                rule = Dense(rule.array[:, None])
        rules.append(rule)
    return Mask(rules)


def _operands(query: Any, key: Any, value: Any, layout: str) -> tuple[Any, Any, Any, str]:
    """Query, key and value (or None) in their common dtype, and the dtype to compute in."""
    given = {"query": query, "key": key} | ({} if value is NO_VALUE else {"value": value})
    tensors, dtype = checks.common_type(**given)
    query, key, *rest = (x if checks.dtype_of(x) == dtype else ops.cast(x, dtype) for x in tensors)
    value = rest[0] if rest else None
    checks.check_operands(query, key, value, layout)
    return query, key, value, checks.compute_type(dtype)


def _checked_dropout(dropout: Any, seed: Any) -> tuple[float, Any]:
    """The rate and, if anything is dropped, the seed."""
    rate = check_real("dropout", dropout, least=0, most=1)
    return rate, checks.check_seed(drawn_seed(rate, seed)) if rate else None


def _checked_mask(mask: Any, target: list[Any], letters: str) -> Mask | None:
    if mask is None:
        return None
    mask = as_mask(mask)
    checks.check_rules(mask.rules, target, letters)
    return mask if mask.rules else None
