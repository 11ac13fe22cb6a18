"""Mistakes in a call of the core, for the fuzz program: each spoils a call, and returns the words of the refusal."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from tests.native import core
from tests.native.core import DENSE, DILATED, LENGTHS, PREFIX, SEGMENTS, WINDOW

Mistake = Callable[[core.Call, np.random.Generator], str]
SIZES = ("batch", "heads", "kv_heads", "query_length", "key_length", "head_dim", "value_dim")
HUGE = (-(2**63), -(2**31) - 1, -1, 2**31 + 1, 2**32, 2**62, 2**63 - 1)
NOT_FINITE = (float("nan"), float("inf"), float("-inf"))
# Fields of a call, numbers that none of them may be, and the words.
FIELDS: tuple[tuple[Sequence[str], Sequence[Any], str], ...] = (
    (SIZES, HUGE, "sizes must be"),
    (("head_dim", "value_dim"), (0, 65537, 2**31), "features .H or U, and V. must be"),
    (("dtype",), (-(2**31), -1, 4, 5, 2**31 - 1), "dtype must be"),
    (("score",), (-(2**31), -1, 2, 2**31 - 1), "score must be"),
    (("scoring.scale",), NOT_FINITE, "scale"),
    (("scoring.soft_cap",), (*NOT_FINITE, -1.0, -1e-300), "soft.cap"),
    (("dropout",), (*NOT_FINITE, -1e-300, -1.0, 1.0, 1e300), "dropout must be"),
    (("rule_count",), (-(2**31), -1, 9, 2**31 - 1), "at most 8 mask rules"),
)
# The arrays of numbers of each kind of rule: their names, and the axis that they have beside the batch.
ARRAYS: dict[int, dict[str, tuple[str, str | None]]] = {
    WINDOW: {"align": ("align", None)},
    PREFIX: {"align": ("align", None), "first": ("n", None)},
    LENGTHS: {"first": ("key_lengths", None), "second": ("query_lengths", None)},
    SEGMENTS: {"first": ("query_ids", "query_length"), "second": ("key_ids", "key_length")},
    DILATED: {"align": ("align", None)},
}
OPTIONAL = ("align", "query_lengths")


def _field(
    names: Sequence[str], numbers: Sequence[Any], words: str, call: core.Call, rng: Any
) -> str:
    struct, _, name = rng.choice(names).rpartition(".")
    number = numbers[rng.integers(0, len(numbers))]
    setattr(attrgetter(struct)(call.attention) if struct else call.attention, name, number)
    return words


def _overflow(call: core.Call, rng: np.random.Generator) -> str:
    """Each size by itself could be; their product cannot."""
    a = call.attention
    big = rng.permutation(["batch", "heads", rng.choice(["query_length", "key_length"])])[
        : rng.integers(2, 4)
    ]
    for name in big:
        setattr(a, name, 2**31 - int(rng.integers(0, 2)))
    a.kv_heads = 1 if "heads" in big else a.kv_heads
    if len(big) == 2:
        setattr(a, rng.choice(["head_dim", "value_dim"]), 65536)
    return "must fit 63 bits"


def _kv_heads(call: core.Call, rng: np.random.Generator) -> str:
    heads = call.attention.heads
    call.attention.kv_heads = int(rng.choice([0, heads + 1, 2 * heads]))
    return "N must be a multiple of K"


def _tensor(call: core.Call, rng: np.random.Generator) -> str:
    name = rng.choice(["query", "key", "value"])
    getattr(call.attention, name).data = None
    return f"`{name}` is missing"


def _no_rules(call: core.Call, rng: np.random.Generator) -> str:
    call.attention.rule_count, call.attention.rules = int(rng.integers(1, 9)), None
    return "mask rules are missing"


def _put(call: core.Call, rng: np.random.Generator, **fields: Any) -> None:
    """Put a rule of these fields in the place of one."""
    a, reach = call.attention, {"left": core.NO_LIMIT, "right": core.NO_LIMIT}
    a.rule_count = max(a.rule_count, 1)
    a.rules[int(rng.integers(0, a.rule_count))] = core.MaskRule(**reach | fields)


def _kind(call: core.Call, rng: np.random.Generator) -> str:
    _put(call, rng, kind=int(rng.choice([-(2**31), -1, len(core.RULES), 77, 2**31 - 1])))
    return "unknown kind of mask rule"


def _reach(call: core.Call, rng: np.random.Generator) -> str:
    if rng.random() < 0.5:
        _put(call, rng, kind=DILATED, left=int(rng.choice([0, -1, -(2**63)])))
        return "a dilation must be 1 or more"
    _put(call, rng, kind=WINDOW, **{rng.choice(["left", "right"]): int(rng.choice([-1, -(2**63)]))})
    return "a window must reach 0 or more"


def _array(call: core.Call, rng: np.random.Generator) -> str:
    """Leave out an array of numbers, make it too long, or give it no row for a batch entry."""
    a, kind = call.attention, int(rng.choice([*ARRAYS]))
    fields = {
        field: core.Integers(a.query.data, 1, 1 if axis is None else getattr(a, axis))
        for field, (_, axis) in ARRAYS[kind].items()
    }
    field = rng.choice([*fields])
    name, _ = ARRAYS[kind][field]
    if name not in OPTIONAL and rng.random() < 0.4:
        fields[field] = core.Integers()
        words = f"`{name}` of the mask is missing"
    else:
        rows, more = ((a.batch + 1, 0), (0, 0), (1, 1), (2**62, 0))[rng.integers(0, 4)]
        fields[field].rows, fields[field].length = rows, fields[field].length + more
        words = rf"`{name}` of the mask must have shape .* Received: shape \({rows}, "
    _put(call, rng, kind=kind, **fields)
    return words


def _dense(call: core.Call, rng: np.random.Generator) -> str:
    _put(call, rng, kind=DENSE)
    return "the array of a dense mask is missing"


OF_BOTH: tuple[Mistake, ...] = (
    *(functools.partial(_field, *field) for field in FIELDS),
    _overflow,
    _tensor,
    _no_rules,
    _kind,
    _reach,
    _array,
    _dense,
)


def _heads(call: core.Call, rng: np.random.Generator) -> str:
    a = call.attention
    a.heads, a.kv_heads = ((2, 1), (2, 2), (0, 1), (3, 1))[rng.integers(0, 4)]
    return "has one head"


def _of_dot_product(call: core.Call, rng: np.random.Generator) -> str:
    """Set a field that only dot-product attention has."""
    a = call.attention
    fields = (
        (a.scoring, "scale", 0.5, "scale"),
        (a.scoring, "soft_cap", 2.0, "soft cap"),
        (a, "alibi_slopes", a.query.data, "slopes"),
    )
    *change, words = fields[rng.integers(0, 3)]
    setattr(*change)
    return words


def _vector(call: core.Call, rng: np.random.Generator) -> str:
    call.attention.score_vector = None
    return "the score vector is missing"


OF_DOT_PRODUCT: tuple[Mistake, ...] = (*OF_BOTH, _kv_heads)
OF_ADDITIVE: tuple[Mistake, ...] = (*OF_BOTH, _heads, _of_dot_product, _vector)
