"""The structs of `native/include/heed.h` by ctypes, for calls that pass addresses of numbers, and the limits of calls.

Structures are those of the header, field by field; see there for their meaning.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, Structure, c_double, c_int32, c_int64, c_uint32, c_void_p
from typing import Any

from heed.ops.core.form import NONE, NUMBER, Form
from heed.ops.spec import AttentionSpec

DTYPES = {"float32": 0, "float64": 1, "bfloat16": 2, "float16": 3}
# Limits of the header.
MOST_RULES = 8
WIDEST = 65536
_NOTHING = ctypes.c_int64()


class Tensor(Structure):
    """`HeedTensor`."""

    _fields_ = (
        ("data", c_void_p),
        ("batch_stride", c_int64),
        ("row_stride", c_int64),
        ("head_stride", c_int64),
    )


class Scores(Structure):
    """`HeedScores`."""

    _fields_ = (("data", c_void_p), ("shape", c_int64 * 4), ("stride", c_int64 * 4))


class Integers(Structure):
    """`HeedIntegers`."""

    _fields_ = (("data", c_void_p), ("rows", c_int64), ("length", c_int64))


class MaskRule(Structure):
    """`HeedMaskRule`."""

    _fields_ = (
        ("kind", c_int32),
        ("left", c_int64),
        ("right", c_int64),
        ("align", Integers),
        ("first", Integers),
        ("second", Integers),
        ("dense", Scores),
    )


class Attention(Structure):
    """`HeedAttention`."""

    _fields_ = (
        ("score", c_int32),
        ("dtype", c_int32),
        ("batch", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("query_length", c_int64),
        ("key_length", c_int64),
        ("head_dim", c_int64),
        ("value_dim", c_int64),
        ("query", Tensor),
        ("key", Tensor),
        ("value", Tensor),
        ("scale", c_double),
        ("soft_cap", c_double),
        ("bias", Scores),
        ("alibi_slopes", c_void_p),
        ("alibi_align", Integers),
        ("score_vector", c_void_p),
        ("unit_bias", c_void_p),
        ("dropout", c_double),
        ("seed", c_uint32 * 2),
        ("rule_count", c_int32),
        ("rules", POINTER(MaskRule)),
    )


class Forward(Structure):
    """`HeedForward`."""

    _fields_ = (("output", Tensor), ("lse", c_void_p), ("softmax", c_void_p))


class Backward(Structure):
    """`HeedBackward`."""

    _fields_ = (
        ("output", Tensor),
        ("softmax", c_void_p),
        ("output_gradient", Tensor),
        ("lse_gradient", c_void_p),
        ("query_gradient", Tensor),
        ("key_gradient", Tensor),
        ("value_gradient", Tensor),
        ("score_vector_gradient", c_void_p),
        ("bias_gradient", c_void_p),
    )


# An array in memory: its address, its shape and its strides.
Place = tuple[int, tuple[int, ...], tuple[int, ...]]


def mask_rules(form: Form, place: Callable[[int], Place]) -> tuple[Integers, Any, list[Any]]:
    """Return the align of ALiBi, the rules of the mask as an array, and the memory to which they point.

    Args:
        form: the form of a call.
        place: where the operand of that number is; integers are contiguous.
    """
    numbers: list[Any] = []

    def integers(value: int, at: int) -> Integers:
        if at == NONE:
            return Integers()
        if at == NUMBER:
            numbers.append(c_int32(value))
            return Integers(ctypes.addressof(numbers[-1]), 1, 1)
        address, shape, _ = place(at)
        return Integers(address, *(*shape, 1, 1)[:2])

    def scores(at: int) -> Scores:
        if at == NONE:
            return Scores()
        address, shape, strides = place(at)
        strides = tuple(0 if n == 1 else x for n, x in zip(shape, strides, strict=True))
        # An empty array has no address, which would mean that there is none.
        address = address or ctypes.addressof(_NOTHING)
        return Scores(address, (c_int64 * 4)(*shape), (c_int64 * 4)(*strides))

    align, rules = Integers(), []
    for rule in form.rules:
        at = integers(rule.align, rule.align_in)
        if rule.is_alibi:
            align = at
            continue
        several = integers(rule.first, rule.first_in), integers(0, rule.second_in)
        rules.append(
            MaskRule(rule.kind, rule.left, rule.right, at, *several, scores(rule.dense_in))
        )
    array = (MaskRule * len(rules))(*rules)
    return align, array, [array, *numbers]


def reasons_against(spec: AttentionSpec) -> list[str]:
    """Return why the kernels cannot run a call, as sentences."""
    reasons = []
    count = 0 if spec.mask is None else len(spec.mask.rules)
    if count > MOST_RULES:
        reasons.append(f"the mask has {count} rules, the native kernels take {MOST_RULES}")
    if 0 in spec.widths:
        reasons.append("vectors of width 0 have nothing to compute")
    if max(spec.widths) > WIDEST:
        reasons.append(
            f"vectors of {max(spec.widths)} features are too wide, the native kernels take {WIDEST}"
        )
    return reasons
