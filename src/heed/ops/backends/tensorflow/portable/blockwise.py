"""Attention in plain TensorFlow with linear memory: forward, backward and second derivatives, block by block.

Memory traffic: each block of queries is read once, and for it all visible keys and values; its scores exist only while
the block is processed. The backward pass recomputes the scores. From the forward pass it only needs the output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from heed.ops.backends.shared import block as shared
from heed.ops.backends.shared import plan
from heed.ops.backends.shared.block import Arithmetic, BlockAttention, Results
from heed.ops.backends.shared.operands import Block, Operands, fill
from heed.ops.backends.tensorflow.derivatives import (
    check_tapes,
    custom_gradient,
    differentiate_twice,
    has_tangents,
)
from heed.ops.backends.tensorflow.portable._loops import put
from heed.ops.backends.tensorflow.portable._parts import Total, make_plan, over_blocks
from heed.ops.sizes import is_static, size, sizes, slice_axis

Several = Sequence[tf.Tensor]


def _times(
    x: tf.Tensor, y: tf.Tensor, *, transpose_x: bool = False, transpose_y: bool = False
) -> tf.Tensor:
    return tf.matmul(x, y, transpose_a=transpose_x, transpose_b=transpose_y)


def _row_max(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_max(x, -1, keepdims=True)


def _softmax(logits: tf.Tensor, wanted: bool) -> tuple[tf.Tensor, Any, Any]:
    weights = tf.nn.softmax(logits)
    if not wanted:
        return weights, None, None
    # From the largest weight of a row, without a second exponential.
    return weights, _row_max(logits), 1 / _row_max(weights)


ARITHMETIC = Arithmetic(_times, _row_max, _softmax)
# Where two scores have equal weights, the above has no right derivative.
_DIFFERENTIABLE = ARITHMETIC._replace(softmax=shared.softmax)


def blockwise(
    attention: BlockAttention, operands: Operands, *, return_lse: bool
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Return output (B, K, G, T, V) and, if requested, log-sum-exp (B, K, G, T, 1), differentiable twice."""
    flat = operands.flat()
    present = [i for i, x in enumerate(flat) if x is not None]

    def operands_of(tensors: Several) -> Operands:
        given = dict(zip(present, tensors, strict=True))
        return Operands.of([given.get(i) for i in range(len(flat))])

    results = _Op(attention, operands_of, return_lse).attend(*(flat[i] for i in present))
    return results[0], results[1] if return_lse else None


@dataclasses.dataclass(frozen=True)
class _Op:
    """Attention as a differentiable function of the operands' tensors."""

    attention: BlockAttention
    operands_of: Callable[[Several], Operands]
    return_lse: bool

    def attend(self, *inputs: tf.Tensor) -> Several:
        if has_tangents(inputs):
            return self._plain(inputs)

        @custom_gradient
        def op(*tensors: tf.Tensor) -> Any:
            # Without stop_gradient, an outer tape would keep every block of the loops.
            operands = self.operands_of([tf.stop_gradient(x) for x in tensors])
            names = ("output", "lse") if self.return_lse else ("output",)
            results = forward(self.attention, operands, *names)

            def gradient(*incoming: tf.Tensor) -> Any:
                return self._gradient(tensors, incoming, results[0])

            return tuple(results), gradient

        return op(*inputs)

    def _plain(self, tensors: Several) -> Several:
        """Return the same in operations alone, which TensorFlow can differentiate in forward mode."""
        attention = dataclasses.replace(self.attention, arithmetic=_DIFFERENTIABLE)
        whole = attention.whole(self.operands_of(tensors))
        blocks = [(whole.queries, whole.keys)]
        if is_static(*attention.lengths):
            blocks = [*plan.spans(attention, lambda x: is_static(x) or hasattr(x, "numpy"), 8)]
        parts = [attention.attend(whole.cut(*block)) for block in blocks]
        if not parts:
            return forward(attention, whole.operands, "output", "lse")
        return [
            tf.concat(x, 3) for x in zip(*((rows.output, rows.lse) for rows in parts), strict=True)
        ]

    def _gradient(self, inputs: Several, incoming: Several, output: tf.Tensor) -> Any:
        check_tapes()
        count = len(inputs)

        @custom_gradient
        def op(*tensors: tf.Tensor) -> Any:
            stopped = [tf.stop_gradient(x) for x in tensors]
            operands = self.operands_of(stopped[:count])
            found = backward(self.attention, operands, Results(output, *stopped[count:]))

            def gradient(*cotangents: tf.Tensor) -> Any:
                check_tapes()
                operands = self.operands_of(tensors[:count])
                weights = self.operands_of(cotangents)
                return _second(self.attention, operands, tensors[count:], weights)

            return found, gradient

        return op(*inputs, *incoming)


def forward(attention: BlockAttention, operands: Operands, *names: str) -> list[tf.Tensor]:
    """Return `Rows` of these names for all queries."""
    shape, dtype = sizes(operands.query)[:4], operands.query.dtype
    widths = {name: size(operands.value, 3) if name == "output" else 1 for name in names}
    totals = {name: Total([*shape, width], dtype, queries=3) for name, width in widths.items()}

    def rows(block: Block) -> dict[str, tf.Tensor]:
        found = attention.attend(block, want_lse=names != ("output",))
        named = {name: getattr(found, name) for name in names}
        return {x: y if x in ("output", "lse") else found.mark(y, 0.0) for x, y in named.items()}

    found = over_blocks(attention.whole(operands), make_plan(attention), totals, rows)
    return [found[name] for name in names]


def backward(attention: BlockAttention, operands: Operands, results: Results) -> list[tf.Tensor]:
    """Return the gradients of the operands that are there."""
    whole = results.mark(attention.whole(operands))
    if not attention.rate:
        whole = whole.with_one()

    def gradients(block: Block) -> dict[str, tf.Tensor]:
        incoming = results.cut(block.queries, guarded=block.marks is not None)
        return _named(attention.gradients(block, incoming, _vjp).flat(), block, totals)

    totals = _totals(operands)
    return [*over_blocks(whole, make_plan(attention), totals, gradients).values()]


def _vjp(function: Callable[[Several], tf.Tensor], inputs: Several) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        result = function(inputs)
    return result, lambda incoming: tape.gradient(
        result, inputs, incoming, unconnected_gradients="zero"
    )


def _totals(operands: Operands) -> dict[str, Total]:
    """Return how the gradients of the operands that are there combine, by their places."""
    axes: dict[int, dict[str, int]] = {0: {"queries": 3}, 1: {"keys": 2}, 2: {"keys": 2}, 3: {}}
    if (bias := operands.bias) is not None:
        if bias.shape[2] != 1:
            axes[3] = {"queries": 2}
        elif bias.shape[3] != 1:
            axes[3] = {"keys": 3}
    return {
        str(place): Total(sizes(x), x.dtype, **axes.get(place, {}))
        for place, x in enumerate(operands.flat())
        if x is not None
    }


def _named(gradients: Sequence[Any], block: Block, totals: dict[str, Total]) -> dict[str, Any]:
    """Return the gradients of a block's operands by their places; that of a bias of all pairs for all keys."""
    named = {str(place): x for place, x in enumerate(gradients) if x is not None}
    bias = totals.get("3")
    if bias is not None and bias.queries is not None:
        keys = bias.shape[3]
        if not (is_static(keys) and keys == 1):
            named["3"] = put(named["3"], 3, block.keys.begin, keys)
    return named


def _second(
    attention: BlockAttention, operands: Operands, incoming: Several, cotangents: Operands
) -> list[tf.Tensor]:
    """Return the gradients of sum(cotangents * first derivatives): of the operands, then of `incoming`.

    `incoming` are those of the output and, if requested, of the log-sum-exp. Nested tapes run over small blocks: speed
    is not the aim.
    """
    attention = dataclasses.replace(attention, arithmetic=_DIFFERENTIABLE)
    totals = _totals(operands)
    for name, x in zip(("output", "lse"), incoming, strict=False):
        totals[name] = Total(sizes(x), x.dtype, queries=3)
    whole = attention.whole(operands)
    directions = dataclasses.replace(whole, operands=cotangents, marks=None)

    def gradients(block: Block) -> dict[str, tf.Tensor]:
        rows = [slice_axis(x, 3, *block.queries) for x in incoming]
        if block.fresh is not None:
            # The result is linear in the incoming gradients.
            rows = [tf.where(block.fresh, x, tf.zeros((), x.dtype)) for x in rows]
        weights = directions.cut(block.queries, block.keys).operands
        found = _of_block(attention, block, rows, weights)
        named = _named(found[: -len(rows)], block, totals)
        return named | dict(zip(("output", "lse"), found[-len(rows) :], strict=False))

    return [*over_blocks(whole, make_plan(attention, 8), totals, gradients).values()]


def _of_block(
    attention: BlockAttention, block: Block, incoming: Several, cotangents: Operands
) -> list[Any]:
    """Return the same for a block, with None for operands that are missing."""
    flat = block.operands.flat()
    rows: Any = None

    def in_places(found: Iterator[Any]) -> list[Any]:
        return [None if x is None else next(found) for x in flat]

    def attend(*operands: tf.Tensor) -> Several:
        nonlocal rows
        copy = dataclasses.replace(block, operands=Operands.of(in_places(iter(operands))))
        rows = attention.attend(copy, want_lse=len(incoming) > 1)
        return [rows.output, rows.lse][: len(incoming)]

    first, weights = ([x for x in y if x is not None] for y in (flat, cotangents.flat()))
    found = iter(differentiate_twice(attend, first, incoming, weights))
    gradients = [*in_places(found), *found]
    if rows.nonfinite is not None:
        gradients[0] = fill(rows.nonfinite, gradients[0], float("nan"))
    return gradients
