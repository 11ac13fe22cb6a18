"""Writes an attention as arguments and attributes of the custom calls: see `native/adapters/xla_ffi/call.h`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from heed.ops.backends.shared import core
from heed.ops.mask import Mask
from heed.ops.mask_rules import WireRule, of_rank_4, offset
from heed.ops.spec import AttentionSpec, Tensors

_ALIBI = -1  # not a rule: carries the alignment of ALiBi
_LAYOUTS = ("BTNH", "BNTH", "BTU")


class Settings(NamedTuple):
    """Fields as in `call.h`."""

    layout: int
    scale: float
    soft_cap: float
    dropout: float
    has_bias: bool
    has_slopes: bool
    has_seed: bool


# kind, left, right, and the indices of align, first, second (numbers) and dense (arrays), -1 for none.
RuleRow = tuple[int, int, int, int, int, int, int]


class Kind(NamedTuple):
    """What is static in a call: its attributes, and the dtype of the computation."""

    settings: Settings
    rules: tuple[RuleRow, ...]
    dtype: str

    @property
    def is_additive(self) -> bool:
        """Whether the attention is additive."""
        return _LAYOUTS[self.settings.layout] == "BTU"

    def attributes(self) -> dict[str, Any]:
        """The attributes of a call."""
        # XLA has no empty arrays here: the first number is not read.
        rules = np.array([0, *(x for row in self.rules for x in row)], "int64")
        return {"settings": np.array(self.settings, "float64"), "rules": rules}

    def sizes(self, query: Any, key: Any) -> tuple[int, int, int, int]:
        """B, N, T and S."""
        length, heads = (2, 1) if _LAYOUTS[self.settings.layout] == "BNTH" else (1, 2)
        count = 1 if self.is_additive else query.shape[heads]
        return query.shape[0], count, query.shape[length], key.shape[length]


class Inputs(NamedTuple):
    """The arguments of a forward pass.

    Attributes:
        query, key, value: in the layout and one dtype.
        bias: of rank 4, or None.
        slopes: (N,), or None.
        score_vector, unit_bias: (U,) of additive attention, or None.
        seed: (2,) uint32, or None.
        numbers: int32, each (B or 1, length).
        arrays: booleans of rank 4.
    """

    query: Any
    key: Any
    value: Any
    bias: Any
    slopes: Any
    score_vector: Any
    unit_bias: Any
    seed: Any
    numbers: Sequence[Any]
    arrays: Sequence[Any]

    def arguments(self, *extra: Any) -> list[Any]:
        """The arguments of a call in order, with those that only the backward pass has."""
        optional = (self.bias, self.slopes, self.score_vector, self.unit_bias, self.seed)
        present = [x for x in optional if x is not None]
        return [*self[:3], *extra, *present, *self.numbers, *self.arrays]


def write(spec: AttentionSpec, tensors: Tensors) -> tuple[Kind, Inputs]:
    """An attention as a call."""
    numbers: list[Any] = []
    arrays: list[Any] = []

    def number(value: Any) -> int:
        if value is None:
            return -1
        value = jnp.asarray(value, "int32")
        numbers.append(value if value.ndim == 2 else value.reshape(-1, 1))
        return len(numbers) - 1

    def align(value: Any) -> int:
        value = offset(value, *spec.lengths)
        return -1 if isinstance(value, int) and value == 0 else number(value)

    def array(value: Any) -> int:
        if value is None:
            return -1
        arrays.append(of_rank_4(value))
        return len(arrays) - 1

    def row(wire: WireRule) -> RuleRow:
        indices = align(wire.align), number(wire.first), number(wire.second), array(wire.dense)
        return (wire.kind, int(wire.left), int(wire.right), *indices)

    mask = Mask() if spec.mask is None else spec.mask
    rules = [row(rule.to_wire()) for rule in mask.rules]
    if spec.has_slopes:
        rules.append(row(WireRule(_ALIBI, align=mask.alignment)))
    score = spec.score.to_core()
    settings = Settings(
        _LAYOUTS.index(spec.layout),
        score.scale,
        score.soft_cap,
        spec.dropout,
        spec.has_bias,
        spec.has_slopes,
        tensors.seed is not None,
    )
    additive, bias = score.is_additive, tensors.bias
    if bias is not None and not additive:
        bias = of_rank_4(bias)
    inputs = Inputs(
        *tensors[:3],
        bias=None if additive else bias,
        slopes=tensors.slopes,
        score_vector=tensors.score_vector,
        unit_bias=bias if additive else None,
        seed=tensors.seed,
        numbers=tuple(numbers),
        arrays=tuple(arrays),
    )
    return Kind(settings, tuple(rules), spec.dtype), inputs


def softmax_size(kind: Kind, inputs: Inputs) -> Any:
    """`heed_softmax_size`."""
    batch, heads, length, keys = kind.sizes(inputs.query, inputs.key)
    if not all(isinstance(n, int) for n in (batch, length, keys)):
        return (
            2 * batch * heads * length
        )  # Keras infers shapes with symbols for unknown sizes: nothing runs
    call = core.Attention(
        score=int(kind.is_additive),
        dtype=core.DTYPES[inputs.query.dtype.name],
        batch=batch,
        heads=heads,
        kv_heads=heads,
        query_length=length,
        key_length=keys,
        head_dim=inputs.query.shape[-1],
        value_dim=inputs.value.shape[-1],
    )
    return int(core.load()[0].heed_softmax_size(ctypes.byref(call)))


def shape(x: Any, dtype: Any = None) -> jax.ShapeDtypeStruct:
    """The shape and dtype of a result like `x`."""
    return jax.ShapeDtypeStruct(x.shape, dtype or x.dtype)
