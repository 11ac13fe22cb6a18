"""How a query and a key make a score: all that depends on the kind of score is here.

A score is applied to a block of queries and keys, shapes as in `backends/shared/block.py`, and travels to the core as
a `CoreScore`. Backends ask it for what they need, and never for its class.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import keras
import numpy as np
from keras import ops

from heed.ops.backends import current
from heed.ops.mask_rules import MaskRule
from heed.ops.sizes import sizes

if TYPE_CHECKING:
    from heed.ops.backends.shared.operands import Block

# `HeedScore`.
DOT_PRODUCT, ADDITIVE = range(2)
# The transposed product: (B, K, r, H) and (B, K, s, H) to (B, K, r, s).
Times = Callable[[Any, Any], Any]


class CoreScore(NamedTuple):
    """A score as the fields of `HeedAttention` in `native/include/heed.h`.

    Attributes:
        kind: `HeedScore`.
        scale: of the products; 1 for additive attention.
        soft_cap: 0 for none.
    """

    kind: int
    scale: float = 1.0
    soft_cap: float = 0.0

    @property
    def is_additive(self) -> bool:
        """Whether the core gets a score vector, and adds the bias to the queries."""
        return self.kind == ADDITIVE


class Score(Hashable, Protocol):
    """What backends ask of a score. Scores without `operands` are hashable by value.

    Attributes:
        operands: tensors besides query, key and score vector that the scores are computed of, and that get gradients.
            They travel as `Operands.others`, as other tensors where the call is traced or differentiated.
        hides: whether a score may be -inf, which hides the pair.
        limits: rules outside of which all scores are -inf: blocks that they rule out are not computed.
    """

    @property
    def hides(self) -> bool:
        """See above."""
        ...

    @property
    def operands(self) -> tuple[Any, ...]:
        """See above."""
        ...

    @property
    def limits(self) -> tuple[MaskRule, ...]:
        """See above."""
        ...

    def with_operands(self, operands: tuple[Any, ...]) -> Score:
        """Return the score with these operands; with none of them, it is hashable by value."""
        ...

    def apply(self, block: Block, times: Times) -> Any:
        """Return the scores (B, K, G, t, s) of a block. Differentiable by the backend with respect to its operands."""
        ...

    def add_bias(self, query: Any, bias: Any) -> tuple[Any, Any]:
        """Return the query with whatever part of the bias belongs to it, and the bias of the scores."""
        ...

    def numbers_per_pair(self, width: int) -> int:
        """Return how many numbers a block holds in memory for one query and key."""
        ...

    def to_core(self) -> CoreScore:
        """Return the score as the core gets it."""
        ...

    @property
    def product(self) -> DotScore | None:
        """The scaled product that it is, for what can do nothing else; None for every other score."""
        ...


class DotScore(NamedTuple):
    """scale * q . k, capped at soft_cap if that is a number."""

    scale: float
    soft_cap: float | None

    @property
    def hides(self) -> bool:
        """False."""
        return False

    @property
    def operands(self) -> tuple[Any, ...]:
        """None."""
        return ()

    @property
    def limits(self) -> tuple[MaskRule, ...]:
        """None."""
        return ()

    def with_operands(self, operands: tuple[Any, ...]) -> DotScore:
        """Return itself."""
        return self

    def apply(self, block: Block, times: Times) -> Any:
        """Return the scores of a block."""
        query, key = block.operands.query, block.operands.key
        # Scales the query, which has fewer numbers than the scores.
        products = times(fold(query * number(self.scale, query)), key)
        scores = unfold(products, query.shape[2])
        if self.soft_cap is None:
            return scores
        capped = current().MATH.tanh(scores * number(1 / self.soft_cap, query))
        return number(self.soft_cap, query) * capped

    def add_bias(self, query: Any, bias: Any) -> tuple[Any, Any]:
        """Return both as they are."""
        return query, bias

    def numbers_per_pair(self, width: int) -> int:
        """Return 1: the score."""
        return 1

    def to_core(self) -> CoreScore:
        """Return the score as the core gets it."""
        return CoreScore(DOT_PRODUCT, self.scale, 0.0 if self.soft_cap is None else self.soft_cap)

    @property
    def product(self) -> DotScore | None:
        """Itself."""
        return self


class AdditiveScore(NamedTuple):
    """sum_u score_vector_u * tanh(q_u + k_u + bias_u)."""

    @property
    def hides(self) -> bool:
        """False."""
        return False

    @property
    def operands(self) -> tuple[Any, ...]:
        """None."""
        return ()

    @property
    def limits(self) -> tuple[MaskRule, ...]:
        """None."""
        return ()

    def with_operands(self, operands: tuple[Any, ...]) -> AdditiveScore:
        """Return itself."""
        return self

    def apply(self, block: Block, times: Times) -> Any:
        """Return the scores of a block."""
        query, key, score_vector = (
            getattr(block.operands, x) for x in ("query", "key", "score_vector")
        )
        hidden = current().MATH.tanh(query[..., :, None, :] + key[:, :, None, None])
        return (hidden @ score_vector[:, None])[..., 0]

    def add_bias(self, query: Any, bias: Any) -> tuple[Any, Any]:
        """Return the query plus the bias (U,), and no bias of the scores."""
        return (query if bias is None else query + bias), None

    def numbers_per_pair(self, width: int) -> int:
        """Return U: the terms of the sum."""
        return width

    def to_core(self) -> CoreScore:
        """Return the score as the core gets it."""
        return CoreScore(ADDITIVE)

    @property
    def product(self) -> DotScore | None:
        """None."""
        return None


def from_core(score: CoreScore) -> Score:
    """Return the score that `to_core` made this of."""
    return AdditiveScore() if score.is_additive else DotScore(score.scale, score.soft_cap or None)


def number(x: Any, like: Any) -> Any:
    """Return a number of NumPy in the dtype of a tensor: TensorFlow keeps every number of Python forever."""
    if ops.is_tensor(x):
        return ops.cast(x, like.dtype)
    return np.dtype(keras.backend.standardize_dtype(like.dtype)).type(x)


def fold(x: Any) -> Any:
    """Return (B, K, G, t, x) as (B, K, G * t, x): one matrix product serves all query heads of a key head."""
    batch, heads, queries_per_kv, rows, width = sizes(x)
    return ops.reshape(x, (batch, heads, queries_per_kv * rows, width))


def unfold(x: Any, queries_per_kv: int) -> Any:
    """Return the inverse of `fold`."""
    batch, heads, rows, width = sizes(x)
    return ops.reshape(x, (batch, heads, queries_per_kv, rows // queries_per_kv, width))
