"""Attention and fused row-wise ops in plain TensorFlow, for every device and for XLA."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from heed.ops.backends import NO_LABEL
from heed.ops.backends.protocol import OutputAndLse
from heed.ops.backends.shared.block import BlockAttention, join, prepare
from heed.ops.backends.shared.fused_ops import FusedOps
from heed.ops.backends.shared.operands import Block, Operands
from heed.ops.backends.shared.portable import BlockwiseAttention, OfBlock
from heed.ops.backends.tensorflow.portable._parts import Total, make_plan, over_blocks
from heed.ops.backends.tensorflow.portable._run_time_checks import check_operands
from heed.ops.backends.tensorflow.portable.blockwise import ARITHMETIC, blockwise
from heed.ops.sizes import sizes
from heed.ops.spec import AttentionSpec, Tensors


class Portable(BlockwiseAttention):
    """Attention in plain TensorFlow, block by block."""

    def attend(self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool) -> OutputAndLse:
        results = blockwise(*self.prepare(spec, tensors), return_lse=return_lse)
        return join(spec, tensors, *results)

    def prepare(self, spec: AttentionSpec, tensors: Tensors) -> tuple[BlockAttention, Operands]:
        """Return the attention and its operands, which fail at run time if their sizes do not fit."""
        # A variable is read once.
        tensors = Tensors(*(None if x is None else tf.convert_to_tensor(x) for x in tensors))
        attention, operands = prepare(spec, tensors, ARITHMETIC)
        operands, mask = check_operands(operands, attention.mask, attention.lengths)
        return dataclasses.replace(attention, mask=mask), operands

    def over_blocks(
        self, attention: BlockAttention, whole: Block, widths: Sequence[int], function: OfBlock
    ) -> list[tf.Tensor]:
        shape, dtype = sizes(whole.operands.query)[:4], whole.operands.query.dtype
        totals = {
            str(place): Total([*shape, width], dtype, queries=3)
            for place, width in enumerate(widths)
        }

        def rows(block: Block) -> dict[str, Any]:
            return dict(zip(totals, function(block), strict=True))

        return [*over_blocks(whole, make_plan(attention, 4), totals, rows).values()]


class PortableFusedOps(FusedOps):
    """Fused row-wise ops in plain TensorFlow. Labels are checked at run time."""

    def cross_entropy(
        self, logits: tf.Tensor, labels: tf.Tensor, smoothing: Any, ignored: Any
    ) -> tf.Tensor:
        classes = tf.shape(logits)[-1]
        fits = tf.logical_and(labels >= 0, labels < classes)
        text = [
            "`labels` must be in [0, ",
            classes,
            "), or `ignore_class`. Received: labels ",
            labels,
        ]
        may_be = tf.logical_and(tf.equal(labels, ignored), tf.not_equal(labels, NO_LABEL))
        met = tf.reduce_all(tf.logical_or(fits, may_be))
        with tf.control_dependencies([tf.raw_ops.Assert(condition=met, data=text, summarize=9)]):
            return super().cross_entropy(tf.identity(logits), labels, smoothing, ignored)

    def argmax(self, x: tf.Tensor) -> tf.Tensor:
        return tf.argmax(x, -1, tf.int32)
