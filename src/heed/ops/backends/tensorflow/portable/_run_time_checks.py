"""Checks of sizes that are not known while tracing, with the messages of `checks`.

They cost nothing where all sizes are known. XLA knows all sizes: there the checks drop out, and sizes that do not fit
fail while compiling.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from heed.ops.backends.shared.operands import Operands
from heed.ops.mask import Mask
from heed.ops.mask_rules import axis_letters, put_together, take_apart
from heed.ops.sizes import Size, is_static, size


class Demands:
    """Conditions, and tensors that depend on them."""

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
        """Demand `have == want`, or `have == 1` if `or_one`, unless both are known."""
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

    def broadcast(self, name: str, x: tf.Tensor, target: Sequence[Size]) -> None:
        """Demand that `x` broadcasts to (B, N, T, S) = `target`, as in NumPy."""
        for axis in range(1, x.shape.rank + 1):
            self.equal(
                "broadcast to (B, N, T, S)", size(x, -axis), target[-axis], name, x, or_one=True
            )

    def before(self, x: tf.Tensor) -> tf.Tensor:
        """Return `x`, which now fails unless all demands so far are met."""
        if not self._checks:
            return x
        with tf.control_dependencies(self._checks):
            return tf.identity(x)


def check_operands(
    operands: Operands, mask: Mask | None, lengths: Sequence[Size]
) -> tuple[Operands, Mask | None]:
    """Return the operands and the mask, which fail at run time if their sizes do not fit to (B, N, T, S).

    A bias of unknown shape is broadcast, as its gradient depends on its shape.
    """
    demands = Demands()
    query, key, value, bias = operands.query, operands.key, operands.value, operands.bias
    target = [size(query, 0), query.shape[1] * query.shape[2], *lengths]
    same_batch = "have the batch size of `query` (B)"
    demands.equal(same_batch, size(key, 0), target[0], "key", key)
    if value is not None:
        demands.equal(same_batch, size(value, 0), target[0], "value", value)
        demands.equal("be as long as `key` (S)", size(value, 2), target[3], "value", value)
    if mask is not None:
        for rule in mask.rules:
            if rule.dense is not None:
                demands.broadcast("mask", rule.dense, target)
            for name, x, axes in rule.batched():
                requirement = f"have shape ({axis_letters(axes)})"
                for place, axis in enumerate(axes):
                    demands.equal(requirement, size(x, place), target[axis], name, x)
        tensors, outlines = take_apart(mask.rules)
        mask = Mask(put_together(outlines, [demands.before(x) for x in tensors]))
    if bias is not None and None in bias.shape.as_list():
        demands.broadcast("bias", bias, target)
        known = zip(bias.shape.as_list(), target, strict=True)
        shape = tf.stack([other if length is None else length for length, other in known])
        operands = operands._replace(bias=tf.broadcast_to(demands.before(bias), shape))
    checked = [None if x is None else demands.before(x) for x in operands.flat()]
    return Operands.of(checked), mask
