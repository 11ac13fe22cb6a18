"""`AttentionSpec`: all that says what an attention computes, apart from its tensors. Built and checked once, here."""

from __future__ import annotations

import dataclasses
import functools
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
_CAUSAL = Mask.causal()
# So many kinds of calls are known again: an eager call is checked by what it has in common with those before it.
_REMEMBERED = 1024


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

    @functools.cached_property
    def is_plain(self) -> bool:
        """Whether it holds no tensors, and the lengths are known."""
        return (self.mask is None or self.mask.is_plain) and None not in self.lengths

    @functools.cached_property
    def remembered(self) -> dict[Any, Any]:
        """What implementations know of this spec alone, for the next call of its kind."""
        return {}

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
    query, key, value, given = _operands(query, key, value, layout)
    target, dtype = list(given.target), given.dtype
    heads = target[1]
    mask = _checked_mask(mask, target, "(B, N, T, S)")
    if checks.check_flag("is_causal", is_causal):
        mask = _CAUSAL if mask is None else mask & _CAUSAL
    rate, seed = _checked_dropout(dropout, seed)
    slopes = None
    if alibi_slopes is not None:
        slopes = ops.cast(checks.check_numbers("alibi_slopes", alibi_slopes), dtype)
        if shape_of(slopes) != (heads,):
            raise checks.bad(
                f"`alibi_slopes` must have shape (N,) = ({heads},)", alibi_slopes=slopes
            )
    width = given.operands[0].shape[3]
    score = DotScore(
        checks.check_scale(scale, width, dtype), checks.check_soft_cap(soft_cap, dtype)
    )
    if bias is not None:
        bias = checks.check_bias(bias, target, dtype)
    spec = _spec(given, layout, score, mask, bias is not None, slopes is not None, rate)
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
    query, key, value, given = _operands(query, key, value, "BTU")
    dtype, units = given.dtype, given.operands[0].shape[2]
    score_vector = checks.check_vector("score_vector", score_vector, units, "U", dtype)
    if bias is not None:
        bias = checks.check_vector("bias", bias, units, "U", dtype)
    if mask is not None:
        batch, _, *lengths = given.target
        mask = with_heads(as_mask(mask), [batch, *lengths])
        mask = _checked_mask(mask, list(given.target), "(B, 1, T, S)")
    rate, seed = _checked_dropout(dropout, seed)
    spec = _spec(given, "BTU", AdditiveScore(), mask, bias is not None, False, rate)
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


class _Given(NamedTuple):
    """Query, key and value that fit each other, apart from their numbers; what is known of a call by its shapes.

    Attributes:
        operands: query, key and value; None for a value that is not wanted.
        target: B, N, T and S.
        dtype: that is computed in.
    """

    operands: tuple[checks.Operand, checks.Operand, checks.Operand | None]
    target: tuple[int | None, ...]
    dtype: str


@functools.lru_cache(maxsize=_REMEMBERED)
def _checked_operands(
    query: checks.Operand, key: checks.Operand, value: checks.Operand | None, layout: str
) -> _Given:
    checks.check_operands(query, key, value, layout)
    axis = checks.HEADS_AXIS.get(layout)
    length_axis = 1 if axis is None else 3 - axis
    heads = 1 if axis is None else query.shape[axis]
    target = (query.shape[0], heads, query.shape[length_axis], key.shape[length_axis])
    return _Given((query, key, value), target, checks.compute_type(query.dtype))


def _operands(query: Any, key: Any, value: Any, layout: str) -> tuple[Any, Any, Any, _Given]:
    """Query, key and value (or None) in their common dtype, and what is known of them."""
    of_value = None
    if value is NO_VALUE:
        (query, key), dtype = checks.common_type(query=query, key=key)
        value = None
    else:
        (query, key, value), dtype = checks.common_type(query=query, key=key, value=value)
        of_value = checks.Operand(shape_of(value), dtype)
    of_query, of_key = checks.Operand(shape_of(query), dtype), checks.Operand(shape_of(key), dtype)
    return query, key, value, _checked_operands(of_query, of_key, of_value, layout)


def _made_spec(
    given: _Given,
    layout: str,
    score: DotScore | AdditiveScore,
    mask: Mask | None,
    has_bias: bool,
    has_slopes: bool,
    dropout: float,
) -> AttentionSpec:
    return AttentionSpec.of(
        *given.operands,
        layout,
        score=score,
        mask=mask,
        dtype=given.dtype,
        has_bias=has_bias,
        has_slopes=has_slopes,
        dropout=dropout,
    )


_remembered_spec = functools.lru_cache(maxsize=_REMEMBERED)(_made_spec)


def _spec(
    given: _Given, layout: str, score: DotScore | AdditiveScore, mask: Mask | None, *others: Any
) -> AttentionSpec:
    # A mask of tensors counts by their identity, and must not keep them alive.
    make = _remembered_spec if mask is None or mask.is_plain else _made_spec
    return make(given, layout, score, mask, *others)


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
