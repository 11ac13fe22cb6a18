"""How a query and a key make a score: all that depends on the kind of score is here.

A score is applied to a block of queries and keys, shapes as in `backends/shared/block.py`, and travels to the core as
a `CoreScore`. Backends ask it for what they need, and never for its class.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import keras
import numpy as np
from keras import ops

from heed.number_checks import check_real
from heed.ops.backends import current
from heed.ops.checks import check_magnitude
from heed.ops.mask_rules import MaskRule, Where
from heed.ops.options import SCORING, AttentionOptions
from heed.ops.score_mod.bounds import Place, indices
from heed.ops.score_mod.captures import flatten, from_floats, to_floats
from heed.ops.score_mod.evaluation import evaluate
from heed.ops.score_mod.keras_functions import KerasFunctions
from heed.ops.score_mod.operations import SINGULAR
from heed.ops.score_mod.program import Program
from heed.ops.score_mod.rewriting import specialize
from heed.ops.score_mod.tracing import trace_score
from heed.ops.sizes import sizes

if TYPE_CHECKING:
    from typing_extensions import Self

    from heed.ops.backends.shared.operands import Block

# `HeedScore`.
DOT_PRODUCT, ADDITIVE = range(2)
# The transposed product: (B, K, r, H) and (B, K, s, H) to (B, K, r, s).
Times = Callable[[Any, Any], Any]


class CoreScore(NamedTuple):
    """A score as the core gets it."""

    kind: int  # `HeedScore` in `native/include/heed.h`
    numbers: tuple[float, ...]  # `HeedScoring`, by the names of `SCORING`

    @property
    def is_additive(self) -> bool:
        """Whether the core gets a score vector, and adds the bias to the queries."""
        return self.kind == ADDITIVE


class Score(Hashable, Protocol):
    """What backends ask of a score. Scores without `operands` are hashable by value."""

    @property
    def program(self) -> Program | None:
        """The function that modifies the score; None if it is none."""
        ...

    @property
    def core_reasons(self) -> Sequence[str]:
        """Why the native kernels cannot compute it, as sentences."""
        ...

    @property
    def hides(self) -> bool:
        """Whether a score may be -inf, which hides the pair."""
        ...

    @property
    def operands(self) -> tuple[Any, ...]:
        """Tensors besides query, key and score vector of which scores are computed, and that get gradients.

        They travel as `Operands.others`, as other tensors where the call is traced or differentiated.
        """
        ...

    @property
    def limits(self) -> tuple[MaskRule, ...]:
        """Rules outside of which all scores are -inf: blocks that they rule out are not computed."""
        ...

    def with_operands(self, operands: tuple[Any, ...]) -> Score:
        """Return the score with these operands; with none of them, it is hashable by value."""
        ...

    def apply(self, block: Block, times: Times, visible: Any) -> Any:
        """Return the scores (B, K, G, t, s) of a block. Differentiable by the backend with respect to its operands.

        Args:
            block: the queries and keys.
            times: the transposed product.
            visible: booleans that broadcast to the scores: others do not matter, but are finite. None for all.
        """
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

    @property
    def base_product(self) -> DotScore | None:
        """The scaled product that it is, or that its function modifies; None for additive scores."""
        ...


class _NoFunction:
    """A score without a function of a user. Attributes of the class cost a call nothing."""

    program = None
    core_reasons: Sequence[str] = ()
    hides = False
    operands: tuple[Any, ...] = ()
    limits: tuple[MaskRule, ...] = ()

    def with_operands(self, operands: tuple[Any, ...]) -> Self:
        return self

    @property
    def product(self) -> DotScore | None:
        return None

    @property
    def base_product(self) -> DotScore | None:
        return self.product


@dataclasses.dataclass(frozen=True)
class DotScore(_NoFunction):
    """scale * q . k, capped at soft_cap if that is a number."""

    scale: float
    soft_cap: float | None = None

    @classmethod
    def of(cls, options: AttentionOptions, width: int, dtype: str) -> DotScore:
        """Check the options of the op that make it, for H = `width`; `dtype` is that of the scores."""
        scale: Any = options["scale"]
        if scale is None:
            scale = 1 / math.sqrt(width) if width else 1.0
        else:
            number = check_real("scale", scale, least=-math.inf, optional=True)
            scale = check_magnitude("scale", number, 0, dtype)
        cap = check_real("soft_cap", options["soft_cap"], least=0, exclusive=True, optional=True)
        return cls(scale, None if cap is None else check_magnitude("soft_cap", cap, 1e-30, dtype))

    def apply(self, block: Block, times: Times, visible: Any) -> Any:
        query, key = block.operands.query, block.operands.key
        # Scales the query, which has fewer numbers than the scores.
        products = times(fold(query * number(self.scale, query)), key)
        return self.cap(unfold(products, query.shape[2]))

    @property
    def is_plain(self) -> bool:
        """Whether the scores are the scaled products themselves."""
        return self == DotScore(self.scale)

    def cap(self, products: Any) -> Any:
        """Return the scores of scaled products, of any shape."""
        return self.cap_with(current().MATH, functools.partial(number, like=products), products)

    def cap_with(self, math_of: Any, number: Callable[[float], Any], products: Any) -> Any:
        """Return the scores of scaled products, by functions of tensors, and one that makes a factor of a number."""
        if self.soft_cap is None:
            return products
        return number(self.soft_cap) * math_of.tanh(products * number(1 / self.soft_cap))

    def add_bias(self, query: Any, bias: Any) -> tuple[Any, Any]:
        return query, bias

    def numbers_per_pair(self, width: int) -> int:
        return 1

    def to_core(self) -> CoreScore:
        return CoreScore(DOT_PRODUCT, tuple(getattr(self, name) or 0.0 for name in SCORING))

    def onnx_attributes(self) -> dict[str, Any]:
        """Return the score as attributes of ONNX's operator `Attention`."""
        return {"scale": self.scale, "softcap": self.soft_cap}

    @property
    def product(self) -> DotScore | None:
        return self


@dataclasses.dataclass(frozen=True)
class AdditiveScore(_NoFunction):
    """sum_u score_vector_u * tanh(q_u + k_u + bias_u)."""

    def apply(self, block: Block, times: Times, visible: Any) -> Any:
        query, key, score_vector = (
            getattr(block.operands, x) for x in ("query", "key", "score_vector")
        )
        hidden = current().MATH.tanh(query[..., :, None, :] + key[:, :, None, None])
        return (hidden @ score_vector[:, None])[..., 0]

    def add_bias(self, query: Any, bias: Any) -> tuple[Any, Any]:
        return (query if bias is None else query + bias), None

    def numbers_per_pair(self, width: int) -> int:
        return width

    def to_core(self) -> CoreScore:
        return DotScore(1.0).to_core()._replace(kind=ADDITIVE)


class FunctionScore(NamedTuple):
    """function(score, b, n, i, j), of another score and the indices of the pair."""

    base: Score  # the score that is modified
    function: str  # the program of the function, as text
    dtype: str  # of the scores
    operands: tuple[Any, ...] = ()  # the arrays that the function reads, as floats

    @classmethod
    def of(
        cls, base: Score, function: Any, sizes: Sequence[int | None], dtype: str
    ) -> FunctionScore:
        """Trace a function of a user.

        Args:
            base: the score that it gets.
            function: see `dot_product_attention`.
            sizes: B, N, T and S, None where they are not known.
            dtype: of the scores.
        """
        program, captures = trace_score(function, dtype)
        arrays = flatten(program, captures, dtype)
        text = _specialized(program, Place(*map(indices, sizes)))
        return cls(base, text, dtype, to_floats(arrays, program.captures, dtype))

    @property
    def program(self) -> Program:
        return Program.from_text(self.function)

    @property
    def core_reasons(self) -> list[str]:
        if self.base.to_core().is_additive:
            return ["a function modifies additive scores, which the native kernels do not take"]
        return []

    def captured(self) -> list[Any]:
        """Return the arrays that the function reads, in their own types."""
        return from_floats(self.operands, self.program.captures)

    @property
    def hides(self) -> bool:
        return True  # a function may give -inf

    @property
    def limits(self) -> tuple[MaskRule, ...]:
        # The bounds of the function say where a score may be above -1e30.
        return (Where(self.function, 1, 1),)

    def with_operands(self, operands: tuple[Any, ...]) -> FunctionScore:
        return self._replace(operands=operands)

    def apply(self, block: Block, times: Times, visible: Any) -> Any:
        scores = self.base.apply(block, times, visible)
        program, functions = self.program, KerasFunctions(self.dtype)
        captures = from_floats(block.operands.others, program.captures)
        leaves = dict(zip(("BATCH", "HEAD", "QUERY", "KEY"), block.indices(), strict=True))

        def modify(scores: Any, captures: Sequence[Any], visible: Any) -> Any:
            leaves["SCORE"] = scores
            values = evaluate(program.instructions, functions, leaves, captures, visible)
            return ops.broadcast_to(values[program.score], sizes(scores))

        least, shown = number(HIDING_SCORE, scores), visible
        if any(x.name in SINGULAR for x in program.instructions):
            # No gradient of a pair that the function itself hides is nonfinite.
            before = modify(ops.stop_gradient(scores), [*map(ops.stop_gradient, captures)], visible)
            seen = ~(before <= least)
            shown = seen if visible is None else ops.logical_and(visible, seen)
        modified = modify(scores, captures, shown)
        hidden = modified <= least if shown is visible else ~seen
        if visible is not None:
            modified = ops.where(visible, modified, ops.zeros((), scores.dtype))
        return ops.where(hidden, number(-math.inf, scores), modified)

    def add_bias(self, query: Any, bias: Any) -> tuple[Any, Any]:
        return self.base.add_bias(query, bias)

    def numbers_per_pair(self, width: int) -> int:
        return self.base.numbers_per_pair(width) + _ALIVE

    def to_core(self) -> CoreScore:
        return self.base.to_core()

    @property
    def product(self) -> DotScore | None:
        return None

    @property
    def base_product(self) -> DotScore | None:
        return self.base.base_product


# Tensors of the size of the scores that the operations of a function hold at a time.
_ALIVE = 3
# A modified score of this or less hides its key as -inf does; above, it is an ordinary number.
HIDING_SCORE = -1e30


@functools.lru_cache(maxsize=256)
def _specialized(program: Program, place: Place) -> str:
    return specialize(program, place).to_text()


def from_core(score: CoreScore) -> Score:
    """Return the score that `to_core` made this of."""
    if score.is_additive:
        return AdditiveScore()
    scale, *others = score.numbers
    return DotScore(scale, *(x or None for x in others))


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
