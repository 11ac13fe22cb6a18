"""Turns the arguments of an attention op into `(AttentionSpec, Tensors)`, and checks them once."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import keras
from keras import ops

from heed.number_checks import check_real
from heed.ops import checks
from heed.ops.backends import current
from heed.ops.layouts import LAYOUTS
from heed.ops.mask import Mask, as_mask
from heed.ops.options import AttentionOptions
from heed.ops.recomputation import draw
from heed.ops.scores import AdditiveScore, DotScore, FunctionScore, Score
from heed.ops.sizes import shape_of, size
from heed.ops.spec import AttentionSpec, Tensors

# Stands for the value where only weights are wanted.
_NO_VALUE = object()
_CAUSAL = Mask.causal()
# How many kinds of calls are cached: eager calls of a known kind are not checked again.
_CACHE_SIZE = 1024


def dot_product(
    options: AttentionOptions, query: Any, key: Any, value: Any = _NO_VALUE
) -> tuple[AttentionSpec, Tensors]:
    """Check the arguments of `dot_product_attention`; without a value, those of its weights.

    Args:
        options: all of them.
    """
    kind = _kind_of(options, query, key, value)
    spec = _known_specs.get(kind)
    if spec is not None:
        return spec, Tensors(query, key, value)
    given = query, key, value
    layout = options["layout"]
    checks.check_layout(layout)
    query, key, value, signature = _check_operands(query, key, value, layout)
    target, dtype = list(signature.target), signature.dtype
    heads = target[1]
    mask = _check_mask(options["mask"], target, "(B, N, T, S)", query)
    if checks.check_flag("is_causal", options["is_causal"]):
        mask = _CAUSAL if mask is None else mask & _CAUSAL
    rate, seed = _check_dropout(options["dropout"], options["seed"])
    slopes = options["alibi_slopes"]
    if slopes is not None:
        slopes = ops.cast(checks.check_numbers("alibi_slopes", slopes), dtype)
        if shape_of(slopes) != (heads,):
            raise checks.shape_error(
                f"`alibi_slopes` must have shape (N,) = ({heads},)", alibi_slopes=slopes
            )
    score: Score = DotScore.of(options, signature.operands[0].shape[3], dtype)
    if options["score_mod"] is not None:
        score = FunctionScore.of(score, options["score_mod"], target, dtype)
    bias = options["bias"]
    if bias is not None:
        bias = checks.check_bias(bias, target, dtype)
    tensors = Tensors(query, key, value, bias, slopes, seed)
    spec = _make_spec(signature, layout, mask, score, rate, tensors)
    # Only if such operands need no cast.
    if kind is not None and all(x is y for x, y in zip(tensors, given, strict=False)):
        if len(_known_specs) >= _CACHE_SIZE:
            _known_specs.clear()
        _known_specs[kind] = spec
    return spec, tensors


# Specs of calls without tensors but query, key and value, by `_kind_of`.
_known_specs: dict[Any, AttentionSpec] = {}
# The types of options that a kind holds by their values.
_PLAIN = {type(None), bool, float, str, Mask}


def _kind_of(options: AttentionOptions, query: Any, key: Any, value: Any) -> Any:
    """Return a key for calls that need the same checks, and so none after the first; None where there is no such key.

    Types count: True equals 1.0, but is no scale.
    """
    values = tuple(options.values())
    types = tuple(map(type, values))
    mask = options["mask"]
    if (
        value is _NO_VALUE
        or not _PLAIN.issuperset(types)
        or options["dropout"]
        or (type(mask) is Mask and not mask.is_plain)
    ):
        return None
    operands = current().kind_of(query, key, value)
    return None if operands is None else (operands, types, values)


def with_mask(spec: AttentionSpec, mask: Mask) -> AttentionSpec:
    """Return the spec with the rules of another mask, too."""
    if not mask.rules:
        return spec
    return dataclasses.replace(spec, mask=mask if spec.mask is None else mask & spec.mask)


def additive(
    query: Any,
    key: Any,
    value: Any = _NO_VALUE,
    *,
    score_vector: Any,
    bias: Any,
    mask: Any,
    score_mod: Any,
    dropout: float,
    seed: Any,
) -> tuple[AttentionSpec, Tensors]:
    """Check the arguments of `additive_attention`; without a value, those of its weights."""
    query, key, value, signature = _check_operands(query, key, value, "BTU")
    dtype, units = signature.dtype, signature.operands[0].shape[2]
    score_vector = checks.check_vector("score_vector", score_vector, units, "U", dtype)
    if bias is not None:
        bias = checks.check_vector("bias", bias, units, "U", dtype)
    if mask is not None:
        batch, _, *lengths = signature.target
        mask = with_heads(as_mask(mask), [batch, *lengths])
        mask = _check_mask(mask, list(signature.target), "(B, 1, T, S)", query)
    rate, seed = _check_dropout(dropout, seed)
    tensors = Tensors(query, key, value, bias, None, seed, score_vector)
    score: Score = AdditiveScore()
    if score_mod is not None:
        score = FunctionScore.of(score, score_mod, signature.target, dtype)
    return _make_spec(signature, "BTU", mask, score, rate, tensors), tensors


def draw_seed(rate: float, seed: Any) -> Any:
    """Return `seed`, or a new one from Keras' global generator where dropout needs one and there is none."""
    if not rate or seed is not None:
        return seed
    new = functools.partial(keras.random.randint, (2,), -(2**31), 2**31 - 1, dtype="int32")
    return draw("keras.random", new)


def with_heads(mask: Mask, target: list[Any]) -> Mask:
    """Expand a mask over (B, T, S), the target, to (B, 1, T, S)."""
    for rule in mask.rules:
        if rule.dense is not None:
            checks.check_broadcast("mask", rule.dense, target, "(B, T, S)")
    return mask.map_dense(lambda x: x[:, None] if len(x.shape) == 3 else x)


class _Signature(NamedTuple):
    """The shapes and dtypes of a call, checked."""

    # query, key and value; None for a value that is not wanted
    operands: tuple[checks.Operand, checks.Operand, checks.Operand | None]
    target: tuple[int | None, ...]  # B, N, T and S
    dtype: str  # of the computation


@functools.lru_cache(maxsize=_CACHE_SIZE)
def _make_signature(
    layout: str, query: checks.Operand, key: checks.Operand, value: checks.Operand | None = None
) -> _Signature:
    checks.check_operands(query, key, value, layout)
    _, axis, length_axis = LAYOUTS[layout]
    heads = 1 if axis is None else query.shape[axis]
    target = (query.shape[0], heads, query.shape[length_axis], key.shape[length_axis])
    return _Signature((query, key, value), target, checks.compute_type(query.dtype))


def _check_operands(
    query: Any, key: Any, value: Any, layout: str
) -> tuple[Any, Any, Any, _Signature]:
    """Return query, key and value (or None) in their common dtype, and their signature."""
    operands = {"query": query, "key": key}
    if value is not _NO_VALUE:
        operands["value"] = value
    tensors, dtype = checks.common_type(**operands)
    # Where code is recorded, sizes may be symbols, which no cache can hold.
    make = _make_signature.__wrapped__ if current().hides_values() else _make_signature
    signature = make(layout, *[checks.Operand(shape_of(x), dtype) for x in tensors])
    query, key, value = (*tensors, None)[:3]
    return query, key, value, signature


_cached_spec = functools.lru_cache(maxsize=_CACHE_SIZE)(AttentionSpec.of)


def _make_spec(
    signature: _Signature,
    layout: str,
    mask: Mask | None,
    score: Score,
    dropout: float,
    tensors: Tensors,
) -> AttentionSpec:
    # The cache would keep the tensors of a mask or score alive, and torch.compile cannot trace it.
    cached = (mask is None or mask.is_plain) and not score.operands and not current().hides_values()
    make = _cached_spec if cached else AttentionSpec.of
    return make(
        *signature.operands,
        layout,
        score=score,
        mask=mask,
        dtype=signature.dtype,
        has_bias=tensors.bias is not None,
        has_slopes=tensors.slopes is not None,
        dropout=dropout,
    )


def _check_dropout(dropout: Any, seed: Any) -> tuple[float, Any]:
    """Return the rate, and the seed unless the rate is 0."""
    rate = check_real("dropout", dropout, least=0, most=1)
    return rate, checks.check_seed(draw_seed(rate, seed)) if rate else None


def _check_mask(mask: Any, target: list[Any], letters: str, query: Any) -> Mask | None:
    if mask is None:
        return None
    mask = as_mask(mask)
    checks.check_rules(mask.rules, target, letters)
    return mask.bind(size(query, 0), target[1]) if mask.rules else None
