"""Attention in plain TensorFlow with linear memory: forward, backward and second derivatives, block by block.

Memory traffic: each block of queries is read once, and for it all visible keys and values; its scores exist only while
the block is processed. The backward pass recomputes the scores. From the forward pass it only needs the output and,
for tiles, row_max and row_sum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from heed.ops.backends.tensorflow.forward_mode import check_tapes, has_tangents
from heed.ops.backends.tensorflow.portable.backward import Results, backward
from heed.ops.backends.tensorflow.portable.blocks import Plan, make_plan, small_plan
from heed.ops.backends.tensorflow.portable.custom_gradient import custom_gradient
from heed.ops.backends.tensorflow.portable.finite import Operands
from heed.ops.backends.tensorflow.portable.forward import forward, whole_rows
from heed.ops.backends.tensorflow.portable.second import second_gradient
from heed.ops.backends.tensorflow.portable.tile import BlockAttention
from heed.ops.mask import Mask
from heed.ops.sizes import Span, is_static


def blockwise(
    attention: BlockAttention, operands: Operands, *, return_lse: bool
) -> tuple[tf.Tensor, ...]:
    """Attention in linear memory, differentiable twice.

    Returns: output (B, K, G, T, V) and, if requested, the log-sum-exp (B, K, G, T, 1).
    """
    queries = attention.lengths[0]
    for place, names in enumerate((("query",), ("key", "value"))):
        attention, operands = _never_empty(attention, operands, place, names)
    results = _Op(attention, make_plan(attention), operands, return_lse).attend()
    if is_static(queries) and queries == 0:
        return tuple(x[:, :, :, :0] for x in results)
    return results


def _never_empty(
    attention: BlockAttention, operands: Operands, place: int, names: Sequence[str]
) -> tuple[BlockAttention, Operands]:
    """Replaces an empty axis of queries (place 0) or keys (place 1) by one position that sees nothing."""
    lengths = list(attention.lengths)
    if not is_static(lengths[place]) or lengths[place]:
        return attention, operands

    def padded(x: tf.Tensor, axis: int) -> tf.Tensor:
        return tf.pad(x, [[0, int(other == axis)] for other in range(x.shape.rank)])

    tensors = {name: padded(getattr(operands, name), 3 - place) for name in names}
    if operands.bias is not None and operands.bias.shape[2 + place] == 0:
        tensors["bias"] = padded(operands.bias, 2 + place)
    lengths[place] = 1
    attention = dataclasses.replace(attention, mask=Mask.dense(False), lengths=tuple(lengths))
    return attention, dataclasses.replace(operands, **tensors)


@dataclasses.dataclass(frozen=True)
class _Op:
    """Attention as a differentiable function of the operands' tensors."""

    attention: BlockAttention
    plan: Plan
    operands: Operands
    return_lse: bool

    def attend(self) -> tuple[tf.Tensor, ...]:
        if has_tangents(self.operands.tensors.values()):
            return self._plain()

        @custom_gradient
        def op(*inputs: tf.Tensor) -> Any:
            # Without stop_gradient, an outer tape would keep every block of the loops.
            operands = self._guarded([tf.stop_gradient(x) for x in inputs])
            output, lse, softmax = forward(self.attention, self.plan, operands, self.return_lse)

            def gradient(*incoming: tf.Tensor) -> Any:
                return self._gradient(inputs, incoming, output, softmax)

            return ((output, lse) if self.return_lse else (output,)), gradient

        return op(*self.operands.tensors.values())

    def _plain(self) -> tuple[tf.Tensor, ...]:
        """The same in operations alone, which TensorFlow can differentiate in forward mode."""
        mask, (length, keys) = self.attention.mask, self.attention.lengths
        step = small_plan(self.attention).query_block
        known = is_static(length, step)
        spans = (
            [Span(i, min(step, length - i)) for i in range(0, length, step)]
            if known
            else [Span(0, length)]
        )
        parts = []
        for queries in spans:
            block = self.operands.cut_queries(queries).cut_keys(Span(0, keys))
            safe = block.guard(mask).finite("query", "key", "value")
            parts.append(whole_rows(self.attention, safe, self.return_lse).finish())
        return tuple(tf.concat(blocks, 3) for blocks in zip(*parts, strict=True))

    def _gradient(
        self,
        inputs: Sequence[tf.Tensor],
        incoming: Sequence[tf.Tensor],
        output: tf.Tensor,
        softmax: tf.Tensor | None,
    ) -> Any:
        check_tapes()
        count = len(inputs)

        @custom_gradient
        def op(*tensors: tf.Tensor) -> Any:
            stopped = [tf.stop_gradient(x) for x in tensors]
            received = Results(output, softmax, *stopped[count:])
            results = backward(self.attention, self.plan, self._guarded(stopped[:count]), received)

            def gradient(*cotangents: tf.Tensor) -> Any:
                check_tapes()
                operands = self.operands.with_tensors(tensors[:count])
                return second_gradient(self.attention, operands, tensors[count:], cotangents)

            return results, gradient

        return op(*inputs, *incoming)

    def _guarded(self, tensors: Sequence[tf.Tensor]) -> Operands:
        return self.operands.with_tensors(tensors).guard(self.attention.mask)
