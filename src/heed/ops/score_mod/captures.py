"""The arrays that a program reads, as the core and the operations of Keras need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops

from heed.ops import checks
from heed.ops.score_mod.operations import Type
from heed.ops.score_mod.program import Program


def flatten(program: Program, captures: Sequence[Any], dtype: str = "float32") -> tuple[Any, ...]:
    """Return the captured arrays flat: floats in `dtype`, int32 (others clamped), booleans."""
    wanted = {Type.FLOAT: dtype, Type.INT: "int32", Type.BOOL: "bool"}
    found = []
    for x, kind in zip(captures, program.captures, strict=True):
        if kind == Type.INT:
            x = checks.check_integers("captured array", x)
        found.append(ops.reshape(ops.cast(x, wanted[kind]), (-1,)))
    return tuple(found)
