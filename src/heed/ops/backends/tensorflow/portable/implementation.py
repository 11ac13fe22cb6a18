"""Attention and fused row-wise ops in plain TensorFlow, for every device and for XLA."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from heed.ops import checks
from heed.ops.backends import NO_LABEL
from heed.ops.backends.shared.block import BlockAttention, join
from heed.ops.backends.shared.block import prepare as prepare_unchecked
from heed.ops.backends.shared.fused_ops import PlainFusedOps
from heed.ops.backends.shared.operands import Block, Operands
from heed.ops.backends.shared.row_statistics import statistics_of
from heed.ops.backends.shared.weights import some_weights
from heed.ops.backends.tensorflow.portable._parts import Total, make_plan, over_blocks
from heed.ops.backends.tensorflow.portable._run_time_checks import check_operands
from heed.ops.backends.tensorflow.portable.blockwise import ARITHMETIC, blockwise
from heed.ops.sizes import sizes
from heed.ops.spec import AttentionSpec, Tensors


def checked(spec: AttentionSpec, tensors: Tensors) -> tuple[BlockAttention, Operands]:
    """Return the attention and its operands, which fail at run time if their sizes do not fit."""
    # A variable is read once.
    tensors = Tensors(*(None if x is None else tf.convert_to_tensor(x) for x in tensors))
    attention, operands = prepare_unchecked(spec, tensors, ARITHMETIC)
    operands, mask = check_operands(operands, attention.mask, attention.lengths)
    return dataclasses.replace(attention, mask=mask), operands


class Portable:
    """Attention in plain TensorFlow, block by block."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        """Return None: it runs everywhere."""
        return []

    def attend(
        self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        results = blockwise(*checked(spec, tensors), return_lse=return_lse)
        return join(spec, tensors, *results)

    def weights(
        self,
        spec: AttentionSpec,
        tensors: Tensors,
        *,
        heads: Sequence[int] | None,
        rows: Sequence[int] | None,
        keys: Sequence[int] | None,
        lse: Any,
    ) -> tf.Tensor:
        if lse is not None:
            lse = checks.check_lse(lse, [spec.batch, spec.heads[0], spec.lengths[0]], spec.dtype)
        attention, operands = checked(spec, tensors)
        return some_weights(attention, operands, spec, heads=heads, rows=rows, keys=keys, lse=lse)

    def statistics(
        self, spec: AttentionSpec, tensors: Tensors, *, keys: Sequence[int]
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        stopped = Tensors(*(None if x is None else tf.stop_gradient(x) for x in tensors))
        attention, operands = checked(spec, stopped)
        length = spec.lengths[1]
        chosen = checks.check_indices(
            "keys", keys, attention.lengths[1] if length is None else length
        )
        shape, dtype = sizes(operands.query)[:4], operands.query.dtype
        totals = {
            name: Total([*shape, width], dtype, queries=3)
            for name, width in {"entropy": 1, "distance": 1, "mass": len(chosen)}.items()
        }

        def rows(block: Block) -> dict[str, Any]:
            return dict(zip(totals, statistics_of(attention, block, chosen), strict=True))

        whole = attention.whole(operands._replace(value=None))
        found = over_blocks(whole, make_plan(attention, 4), totals, rows)
        entropy, distance, mass = map(attention.join_heads, found.values())
        return entropy[..., 0], distance[..., 0], mass


class PortableFusedOps(PlainFusedOps):
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
