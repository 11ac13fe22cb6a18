"""Attention through the structs of `native/include/heed.h`, and the limits of its calls."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from ctypes import c_int32, c_int64
from typing import Any

from heed.ops.backends import CPU
from heed.ops.core import _program as program
from heed.ops.core import structs
from heed.ops.core._program import CoreProgram
from heed.ops.core.form import NONE, NUMBER, Form, functions
from heed.ops.core.structs import (
    DTYPES,
    MOST_RULES,
    WIDEST,
    Attention,
    Integers,
    MaskRule,
    Scores,
)
from heed.ops.score_mod.derivative import derive
from heed.ops.score_mod.program import Program, to_bytes
from heed.ops.spec import AttentionSpec

_NOTHING = c_int64()


def describe(
    form: Form,
    dtype: str,
    batch: Any,
    heads: Sequence[int],
    lengths: Sequence[Any],
    widths: Sequence[int],
) -> Attention:
    """Return the struct of a call without its arrays; sizes as in `AttentionSpec`, all of them known."""
    return Attention(
        score=form.header.score,
        dtype=DTYPES[dtype],
        batch=batch,
        heads=heads[0],
        kv_heads=heads[1],
        query_length=lengths[0],
        key_length=lengths[1],
        head_dim=widths[0],
        value_dim=widths[1],
        scoring=form.score.numbers,
        dropout=form.dropout,
    )


# An array in memory: its address, its shape and its strides.
Place = tuple[int, tuple[int, ...], tuple[int, ...]]


def fill(call: Attention, form: Form, place: Callable[[int], Place]) -> list[Any]:
    """Set the rules of the mask, the align of ALiBi and the functions of a call; return the memory of these.

    Args:
        call: the struct of a call.
        form: its form.
        place: where the operand of that number is; integers and captured arrays are contiguous.
    """
    if form.program is not None:
        made, kept = _program(form.program, place)
        call.program = ctypes.pointer(made)
        return [*_fill_rules(call, form, place), made, *kept]
    return _fill_rules(call, form, place)


def _fill_rules(call: Attention, form: Form, place: Callable[[int], Place]) -> list[Any]:
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

    rules = []
    for rule in form.rules:
        at = integers(rule.align, rule.align_in)
        if rule.is_alibi:
            call.alibi_align = at
            continue
        several = integers(rule.first, rule.first_in), integers(0, rule.second_in)
        rules.append(
            MaskRule(rule.kind, rule.left, rule.right, at, *several, scores(rule.dense_in))
        )
    array = (MaskRule * len(rules))(*rules)
    call.rule_count, call.rules = len(rules), array
    return [array, *numbers]


def _program(
    found: CoreProgram, place: Callable[[int], Place]
) -> tuple[structs.Program, list[Any]]:
    lists, scatters, held = _parts_of(found.program)
    captures = (structs.Capture * max(1, len(found.places)))()
    for to, at, kind in zip(captures, found.places, found.program.captures, strict=False):
        to.data, shape, _ = place(at)
        to.size = math.prod(shape)
        to.type = int(kind)
    made = structs.Program(
        forward=lists[0],
        score=found.program.score,
        keep=found.program.keep,
        capture_count=len(found.places),
        captures=captures,
        derivative=lists[1],
        score_gradient=found.derivative.score_gradient,
        scatter_count=len(found.derivative.scatters),
        scatters=scatters,
    )
    return made, [captures, *held]


@functools.lru_cache(maxsize=256)
def _parts_of(program: Program) -> tuple[list[structs.Instructions], Any, list[Any]]:
    """Return both lists of instructions, the scatters, and the memory of all."""
    derivative = derive(program)
    held: list[Any] = []
    lists = []
    for instructions in (program.instructions, derivative.instructions):
        held.append(ctypes.create_string_buffer(to_bytes(instructions)))
        lists.append(structs.Instructions(ctypes.addressof(held[-1]), len(instructions)))
    scatters = (structs.Scatter * max(1, len(derivative.scatters)))(
        *(structs.Scatter(*x) for x in derivative.scatters)
    )
    return lists, scatters, [*held, scatters]


def reasons_of_machine(reason: str, device_of: Callable[[], str]) -> tuple[str, ...]:
    """Return why the kernels cannot run on a machine, as sentences.

    Args:
        reason: why the library cannot be loaded, or empty.
        device_of: the function of a backend.
    """
    if reason:
        return (reason,)
    kind = device_of()
    return () if kind == CPU else (f"there is a {kind}, and the native kernels are for CPUs",)


def reasons_against(spec: AttentionSpec | None, of_machine: Sequence[str]) -> list[str]:
    """Return why the kernels cannot run a call, or None for any call, as sentences."""
    if of_machine or spec is None:
        return [*of_machine]
    reasons = [*spec.score.core_reasons]
    rules = () if spec.mask is None else spec.mask.rules
    if (rules or spec.score.program is not None) and (found := functions(spec)):
        reasons += program.reasons_against(tuple(x.program for x in found))
    if len(rules) > MOST_RULES:
        count = sum(rule.program is None for rule in rules)
        if count > MOST_RULES:
            reasons.append(f"the mask has {count} rules, the native kernels take {MOST_RULES}")
    if 0 in spec.widths:
        reasons.append("vectors of width 0 have nothing to compute")
    if spec.widths[0] > WIDEST or spec.widths[1] > WIDEST:
        reasons.append(
            f"vectors of {max(spec.widths)} features are too wide, the native kernels take {WIDEST}"
        )
    return reasons
