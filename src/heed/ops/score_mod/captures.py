"""The arrays that a program reads, as the core and the operations of Keras need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

from heed.ops import checks
from heed.ops.score_mod.operations import Type
from heed.ops.score_mod.program import Program

_WORD = 2**16


def flatten(program: Program, captures: Sequence[Any], dtype: str = "float32") -> tuple[Any, ...]:
    """Return the captured arrays flat: floats in `dtype`, int32 (others clamped), booleans."""
    wanted = {Type.FLOAT: dtype, Type.INT: "int32", Type.BOOL: "bool"}
    found = []
    for x, kind in zip(captures, program.captures, strict=True):
        if kind == Type.INT:
            x = checks.check_integers("captured array", x)
        found.append(ops.reshape(ops.cast(x, wanted[kind]), (-1,)))
    return tuple(found)


def to_floats(captures: Sequence[Any], kinds: Sequence[Type], dtype: str) -> tuple[Any, ...]:
    """Return flat captured arrays as floats that hold the same numbers, for where only floats travel."""
    found = []
    for x, kind in zip(captures, kinds, strict=True):
        if kind == Type.INT:  # two words, each exact in float32
            low = ops.bitwise_and(x, ops.convert_to_tensor(_WORD - 1, "int32"))
            x = ops.stack([(x - low) // _WORD, low])
        found.append(ops.cast(x, dtype))
    return tuple(found)


def from_floats(captures: Sequence[Any], kinds: Sequence[Type]) -> list[Any]:
    """Return the arrays of `to_floats`."""
    found = []
    for x, kind in zip(captures, kinds, strict=True):
        if kind == Type.INT:
            words = ops.cast(x, "int32")
            x = words[0] * _WORD + words[1]
        found.append(ops.cast(x, "bool") if kind == Type.BOOL else x)
    return found
