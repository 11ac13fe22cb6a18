"""Checks of sizes that are not known while tracing, in the words of `checks`.

Where all sizes are known they cost nothing. A program that XLA compiles knows all its sizes: there the checks drop
out, and sizes that do not fit fail while compiling.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import tensorflow as tf

from heed.ops.mask import Mask
from heed.ops.mask_rules import Dense, MaskRule
from heed.ops.sizes import Size, is_static, size

_T = TypeVar("_T", tf.Tensor, "tf.Tensor | None")


class Demands:
    """Conditions, and tensors that wait until they are met."""

    def __init__(self) -> None:
        self._checks: list[tf.Operation] = []

    def equal(
        self,
        requirement: str,
        have: Size,
        want: Size,
        name: str,
        x: tf.Tensor,
        *,
        or_one: bool = False,
    ) -> None:
        """Demands `have == want`, or, where `x` may broadcast, `have == 1`; unless both are known."""
        if is_static(have, want) or have is want or (or_one and is_static(have) and have == 1):
            return
        met = tf.equal(have, want)
        if or_one:
            met = tf.logical_or(met, tf.equal(have, 1))
        text = f"`{name}` must {requirement}. Received: {name}.shape="
        check = tf.raw_ops.Assert(
            condition=met, data=[text, tf.shape(x), ", wanted", want], summarize=9
        )
        self._checks.append(check)

    def before(self, x: _T) -> _T:
        """`x`, once all demands made so far are met."""
        if x is None or not self._checks:
            return x
        with tf.control_dependencies(self._checks):
            return tf.identity(x)


def check_operands(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor | None,
    mask: Mask | None,
    lengths: Sequence[Size],
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None, Mask | None]:
    """The same tensors, bound to the checks that remain.

    Args:
        query: (B, K, G, T, H); key: (B, K, S, H); value: (B, K, S, V) or None.
        mask: its rules are checked against (B, N, T, S).
        lengths: (T, S).
    """
    demands = Demands()
    batch, keys = size(query, 0), size(key, 2)
    demands.equal("have the batch size of `query` (B)", size(key, 0), batch, "key", key)
    if value is not None:
        demands.equal("have the batch size of `query` (B)", size(value, 0), batch, "value", value)
        demands.equal("be as long as `key` (S)", size(value, 2), keys, "value", value)
    if mask is not None:
        heads = query.shape[1] * query.shape[2]
        for rule in mask.rules:
            _demand_rule(demands, rule, (batch, heads, *lengths))
        mask = Mask([_before(demands, rule) for rule in mask.rules])
    return demands.before(query), demands.before(key), demands.before(value), mask


def check_broadcast(
    demands: Demands, name: str, x: tf.Tensor, target: Sequence[Size], letters: str
) -> None:
    """Demands that `x` broadcasts to `target`, as NumPy does."""
    for axis in range(1, x.shape.rank + 1):
        demands.equal(
            f"broadcast to {letters}", size(x, -axis), target[-axis], name, x, or_one=True
        )


def _demand_rule(demands: Demands, rule: MaskRule, target: Sequence[Size]) -> None:
    if isinstance(rule, Dense):
        check_broadcast(demands, "mask", rule.array, target, "(B, N, T, S)")
        return
    for name, axes in rule.axes.items():
        x = getattr(rule, name)
        if not isinstance(x, tf.Tensor) or x.shape.rank == 0:
            continue
        shape = ", ".join(["B", *("NTS"[axis - 1] for axis in axes)])
        for axis, want in enumerate([target[0], *(target[axis] for axis in axes)]):
            demands.equal(f"have shape ({shape})", size(x, axis), want, name, x)


def _before(demands: Demands, rule: MaskRule) -> MaskRule:
    tensors = {f.name: getattr(rule, f.name) for f in dataclasses.fields(rule)}  # type: ignore[arg-type]
    held = {name: demands.before(x) for name, x in tensors.items() if isinstance(x, tf.Tensor)}
    return dataclasses.replace(rule, **held) if held else rule  # type: ignore[type-var]
