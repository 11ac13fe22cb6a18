"""`AttentionSpec` describes an attention; `Tensors` holds its operands. `arguments.py` makes both from a call."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

from heed.ops import checks
from heed.ops.layouts import LAYOUTS
from heed.ops.mask import Mask
from heed.ops.scores import Score


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
    """Describes an attention: scoring, mask, layout, sizes, dtype, dropout.

    Backends and `heed.inspect` receive it. Hashable; tensors in its mask compare by identity.
    """

    score: Score  # how a query and a key make a score
    mask: Mask | None  # which pairs count, over (B, N, T, S); None for all
    layout: str  # one of `LAYOUTS`
    heads: tuple[int, int]  # N, and K that divides it
    lengths: tuple[int | None, int | None]  # T and S; None where they are not known while tracing
    batch: int | None  # B, or None
    widths: tuple[int, int]  # H (or U) and V; V is 0 where only weights are wanted
    dtype: str  # "float32" or "float64": of scores, softmax and sums, whatever the input has
    operand_dtype: str  # of query, key and value
    # whether a bias is added to the scores, or inside the tanh of additive attention
    has_bias: bool
    has_slopes: bool  # whether there are ALiBi slopes
    dropout: float  # the rate, 0 <= dropout < 1

    @classmethod
    def of(cls, query: Any, key: Any, value: Any, layout: str, **others: Any) -> AttentionSpec:
        """Take the sizes from the tensors; `value` may be None."""
        _, axis, length_axis = LAYOUTS[layout]
        return cls(
            layout=layout,
            heads=(1, 1) if axis is None else (query.shape[axis], key.shape[axis]),
            lengths=(query.shape[length_axis], key.shape[length_axis]),
            batch=query.shape[0],
            widths=(query.shape[-1], 0 if value is None else value.shape[-1]),
            operand_dtype=checks.dtype_of(query),
            **others,
        )

    @functools.cached_property
    def is_plain(self) -> bool:
        """Whether it holds no tensors and the lengths are known."""
        plain = (self.mask is None or self.mask.is_plain) and not self.score.operands
        return plain and None not in self.lengths

    @functools.cached_property
    def cache(self) -> dict[Any, Any]:
        """Results that implementations keep for the next call with this spec."""
        return {}

    @property
    def heads_axis(self) -> int | None:
        """The heads axis of query, key, value and output; None without heads."""
        return LAYOUTS[self.layout].heads_axis

    @property
    def length_axis(self) -> int:
        """T of query and output, S of key and value."""
        return LAYOUTS[self.layout].length_axis

    @property
    def lse_shape(self) -> tuple[Any, ...]:
        """The shape of the log-sum-exp: (B, N, T), or (B, T) without heads."""
        heads = () if self.heads_axis is None else self.heads[:1]
        return (self.batch, *heads, self.lengths[0])

    @property
    def kv_heads(self) -> int:
        """K."""
        return self.heads[1]

    @property
    def queries_per_kv(self) -> int:
        """N / K: how many query heads share a key head."""
        return self.heads[0] // self.heads[1]


class Tensors(NamedTuple):
    """The operands of an attention."""

    # `query`, `key`: in the layout of the spec and in one dtype
    query: Any
    key: Any
    value: Any = None  # the same; None where only weights are wanted
    # (B or 1, N or 1, T or 1, S or 1), of additive attention (U,), in the spec's dtype; or None
    bias: Any = None
    slopes: Any = None  # (N,) of ALiBi in the spec's dtype, or None
    seed: Any = None  # (2,) uint32 of the dropout, or None
    score_vector: Any = None  # (U,) of additive attention in the spec's dtype, or None
