"""Attention in plain TensorFlow with linear memory, for every device and for XLA.

Inside, shapes are query (B, K, G, T, H), key (B, K, S, H) and value (B, K, S, V), with G = N / K query heads for each
key head; see `tile.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from heed.ops import checks
from heed.ops.backends.tensorflow.portable.blockwise import blockwise
from heed.ops.backends.tensorflow.portable.prepare import prepare
from heed.ops.backends.tensorflow.portable.row_statistics import statistics_of
from heed.ops.backends.tensorflow.portable.weights import weights_of
from heed.ops.spec import AttentionSpec, Tensors


class Portable:
    """See `Implementation`."""

    def unsupported_reasons(self, spec: AttentionSpec | None) -> list[str]:
        """None: it runs everywhere."""
        return []

    def attend(
        self, spec: AttentionSpec, tensors: Tensors, *, return_lse: bool
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """See `Implementation.attend`."""
        attention, operands = prepare(spec, tensors)
        output, *lse = blockwise(attention, operands, return_lse=return_lse)
        output = tf.cast(output, tensors.query.dtype)
        if spec.heads_axis is None:
            return output[:, 0, 0], lse[0][:, 0, 0, :, 0] if return_lse else None
        output = attention.join_heads(output)
        if spec.heads_axis == 2:
            output = tf.transpose(output, (0, 2, 1, 3))
        return output, attention.join_heads(lse[0])[..., 0] if return_lse else None

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
        """See `Implementation.weights`."""
        attention, operands = prepare(spec, tensors)
        if lse is not None:
            lse = checks.check_lse(lse, [spec.batch, spec.heads[0], spec.lengths[0]], spec.dtype)
        heads = checks.check_indices("heads", heads, spec.heads[0])
        rows = checks.check_indices("rows", rows, attention.lengths[0])
        keys = checks.check_indices("keys", keys, attention.lengths[1])
        return weights_of(attention, operands, heads=heads, rows=rows, keys=keys, lse=lse)

    def statistics(
        self, spec: AttentionSpec, tensors: Tensors, *, keys: Sequence[int]
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """See `Implementation.statistics`."""
        stopped = Tensors(*(None if x is None else tf.stop_gradient(x) for x in tensors))
        attention, operands = prepare(spec, stopped)
        chosen = checks.check_indices("keys", keys, attention.lengths[1])
        rows = statistics_of(attention, operands, chosen)
        entropy, distance, mass = (attention.join_heads(x) for x in rows)
        return entropy[..., 0], distance[..., 0], mass
