"""The tensors of an attention, whole or cut to a block of queries and keys; shapes as in `block.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from keras import ops

from heed.ops import mask_rules
from heed.ops.sizes import Span, size, sizes, slice_axis


class Operands(NamedTuple):
    """The tensors that get gradients, whole or cut to a block, all in one dtype: float32 or float64."""

    query: Any  # (B, K, G, T, H)
    key: Any  # (B, K, S, H)
    value: Any  # (B, K, S, V); None where only weights are wanted
    bias: Any = None  # of the scores, (B or 1, N or 1, T or 1, S or 1), or None
    score_vector: Any = None  # (U,) of additive attention, or None
    others: tuple[Any, ...] = ()  # what else the score is computed of, see `Score.operands`

    def flat(self) -> list[Any]:
        """Return all in one list, with None for those that are missing."""
        return [*self[:5], *self.others]

    @classmethod
    def of(cls, flat: Sequence[Any]) -> Operands:
        """Return the inverse of `flat`."""
        query, key, value, bias, score_vector, *others = flat
        return cls(query, key, value, bias, score_vector, tuple(others))


class Marks(NamedTuple):
    """Which vectors hold nonfinite numbers, of operands with 0 in their place."""

    query: Any  # booleans (B, K, G, T, 1)
    key: Any  # booleans (B, K, S, 1), of the key or its value


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of queries and keys, or all of them."""

    operands: Operands  # the tensors
    # `queries`, `keys`: the positions
    queries: Span
    keys: Span
    heads: tuple[int, int]  # (K, G)
    marks: Marks | None = None  # of nonfinite vectors; None where arithmetic decides
    value_and_one: Any = None  # (B, K, s, V + 1), see `with_one`; or None
    # (t, 1) booleans, False for queries that another block holds too and answers for; None for all True
    fresh: Any = None
    # the query heads, if these are chosen ones; None for all
    head_numbers: tuple[int, ...] | None = None

    def cut(self, queries: Span, keys: Span) -> Block:
        """Return a block of all queries and keys."""
        return self.cut_keys(keys).cut_queries(queries)

    def cut_keys(self, keys: Span) -> Block:
        """Return a block of keys with all queries, whose bias `cut_queries` cuts."""

        def part(x: Any) -> Any:
            return None if x is None else slice_axis(x, 2, *keys)

        operands, marks = self.operands, self.marks
        return dataclasses.replace(
            self,
            operands=operands._replace(key=part(operands.key), value=part(operands.value)),
            keys=keys,
            marks=None if marks is None else marks._replace(key=part(marks.key)),
            value_and_one=part(self.value_and_one),
        )

    def cut_queries(self, queries: Span, fresh: Any = None) -> Block:
        """Return a block of queries with the keys of this one."""
        operands, marks = self.operands, self.marks
        query = slice_axis(operands.query, 3, *queries)
        bias = mask_rules.cut(operands.bias, queries, self.keys)
        if marks is not None:
            marks = marks._replace(query=slice_axis(marks.query, 3, *queries))
        return dataclasses.replace(
            self,
            operands=operands._replace(query=query, bias=bias),
            queries=queries,
            marks=marks,
            fresh=fresh,
        )

    def guard(self) -> Block:
        """Return the block with finite numbers, and marks of the others."""
        query, key, value, *others = self.operands
        query, of_queries = _split_nonfinite(query)
        key, of_keys = _split_nonfinite(key)
        if value is not None:
            value, of_values = _split_nonfinite(value)
            of_keys = ops.logical_or(of_keys, of_values)
        safe = Operands(query, key, value, *others)
        return dataclasses.replace(self, operands=safe, marks=Marks(of_queries, of_keys))

    def with_one(self) -> Block:
        """Return the block with a 1 appended to each value: a product adds the last number of a row to each sum."""
        value = self.operands.value
        one = ops.ones([*sizes(value)[:3], 1], value.dtype)
        return dataclasses.replace(self, value_and_one=ops.concatenate([value, one], -1))

    def indices(self) -> tuple[Any, Any, Any, Any]:
        """Return batch entry, query head, query and key: int32 that broadcast to (B, K, G, t, s)."""
        kv_heads, queries_per_kv = self.heads
        batch = ops.arange(size(self.operands.query, 0), dtype="int32")
        numbers = self.head_numbers or range(kv_heads * queries_per_kv)
        heads = ops.reshape(ops.convert_to_tensor([*numbers], "int32"), self.heads)
        return (
            batch[:, None, None, None, None],
            heads[None, :, :, None, None],
            self.queries.positions[None, None, None, :, None],
            self.keys.positions[None, None, None, None, :],
        )


def fill(where: Any, x: Any, number: float) -> Any:
    """Return `x` with a number where the condition holds."""
    return ops.where(where, ops.full((), number, x.dtype), x)


def _split_nonfinite(x: Any) -> tuple[Any, Any]:
    """Return `x` with 0 in place of every nonfinite number, and which vectors along the last axis hold one."""
    finite = ops.isfinite(x)
    safe = ops.where(finite, x, ops.zeros((), x.dtype))
    return safe, ~ops.all(finite, axis=-1, keepdims=True)


def zero_nonfinite(x: Any) -> Any:
    """Return `x` with 0 in place of every nonfinite number."""
    return _split_nonfinite(x)[0]


def has_nonfinite(x: Any) -> Any:
    """Return whether each vector along the last axis holds a nonfinite number; that axis stays with length 1."""
    return ~ops.all(ops.isfinite(x), axis=-1, keepdims=True)
