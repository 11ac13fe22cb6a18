"""Attention in plain TensorFlow with linear memory: forward, backward and second derivatives, block by block.

Memory traffic: a block of queries is read once, and for it all visible keys and values; its scores live only while the
block is worked on. The backward pass computes the scores once more instead of keeping them. It needs nothing from the
forward pass but the output (and, for tiles, the highest score and the sum of each row).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from heed.ops.backends.tensorflow.portable.backward import Results, backward
from heed.ops.backends.tensorflow.portable.blocks import make_plan
from heed.ops.backends.tensorflow.portable.custom_gradient import custom_gradient
from heed.ops.backends.tensorflow.portable.finite import Operands
from heed.ops.backends.tensorflow.portable.forward import forward
from heed.ops.backends.tensorflow.portable.second import second_gradient
from heed.ops.backends.tensorflow.portable.tile import Attention
from heed.ops.backends.tensorflow.run_time_checks import check_operands
from heed.ops.mask import Mask
from heed.ops.sizes import is_static


def blockwise(
    attention: Attention,
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    bias: tf.Tensor | None = None,
    parameters: Sequence[tf.Tensor] = (),
    *,
    scores_per_pair: int,
    return_lse: bool = False,
) -> tuple[tf.Tensor, ...]:
    """Any attention in linear memory, differentiable twice.

    Args:
        attention: what to compute, see `Attention`.
        query: (B, K, G, T, H); key: (B, K, S, H); value: (B, K, S, V); all of one dtype, float32 or float64.
        bias: (B or 1, N or 1, T or 1, S or 1), or None.
        parameters: further tensors that the score function takes.
        scores_per_pair: numbers held for one (query, key) pair at once, see `make_plan`.

    Returns: output (B, K, G, T, V) and, if asked for, the log-sum-exp (B, K, G, T, 1).
    """
    query, key, value, mask = check_operands(query, key, value, attention.mask, attention.lengths)
    attention = dataclasses.replace(attention, mask=mask)
    queries, keys = attention.lengths
    if is_static(keys) and keys == 0:
        # One key that nobody sees stands for none, so that everything below has something to work on.
        attention = dataclasses.replace(attention, mask=Mask.dense(False), lengths=(queries, 1))
        key, value = (tf.pad(x, [[0, 0], [0, 0], [0, 1], [0, 0]]) for x in (key, value))
        if bias is not None and bias.shape[3] == 0:
            bias = tf.pad(bias, [[0, 0], [0, 0], [0, 0], [0, 1]])
    if is_static(queries) and queries == 0:
        attention = dataclasses.replace(
            attention, mask=Mask.dense(False), lengths=(1, attention.lengths[1])
        )
        query = tf.pad(query, [[0, 0], [0, 0], [0, 0], [0, 1], [0, 0]])
        if bias is not None and bias.shape[2] == 0:
            bias = tf.pad(bias, [[0, 0], [0, 0], [0, 1], [0, 0]])
    results = _Op(attention, scores_per_pair, bias is not None, len(parameters), return_lse)(
        query, key, value, *([] if bias is None else [bias]), *parameters
    )
    return (
        tuple(x[:, :, :, :0] for x in results) if is_static(queries) and queries == 0 else results
    )


class _Op:
    """The differentiable function of query, key, value, bias (if any) and parameters."""

    def __init__(
        self,
        attention: Attention,
        scores_per_pair: int,
        has_bias: bool,
        parameters: int,
        return_lse: bool,
    ):
        self.attention, self.scores_per_pair, self.return_lse = (
            attention,
            scores_per_pair,
            return_lse,
        )
        self.first_parameter = 4 if has_bias else 3
        self.inputs = self.first_parameter + parameters
        self.plan = make_plan(*attention.lengths, attention.mask, scores_per_pair)

    def __call__(self, *inputs: tf.Tensor) -> tuple[tf.Tensor, ...]:
        results = self._differentiable(inputs)
        return tuple(results) if self.return_lse else (results,)

    def _split(
        self, tensors: Sequence[tf.Tensor]
    ) -> tuple[Sequence[tf.Tensor], Any, Sequence[tf.Tensor]]:
        """(query, key, value), bias or None, and parameters."""
        bias = tensors[3] if self.first_parameter == 4 else None
        return tensors[:3], bias, tensors[self.first_parameter : self.inputs]

    def _differentiable(self, inputs: Sequence[tf.Tensor]) -> Any:
        @custom_gradient
        def op(*inputs: tf.Tensor) -> Any:
            # Without stop_gradient, a tape that is recording would keep every block of the loops inside.
            operands, bias, parameters = self._split([tf.stop_gradient(x) for x in inputs])
            safe = Operands.of(*operands, guarded=self.attention.mask is not None)
            output, lse, softmax = forward(
                self.attention, self.plan, safe, bias, parameters, self.return_lse
            )

            def gradient(*incoming: tf.Tensor) -> Any:
                return self._differentiable_gradient(inputs, incoming, output, softmax)

            return ((output, lse) if self.return_lse else output), gradient

        return op(*inputs)

    def _differentiable_gradient(
        self,
        inputs: Sequence[tf.Tensor],
        incoming: Sequence[tf.Tensor],
        output: tf.Tensor,
        softmax: tf.Tensor | None,
    ) -> Any:
        @custom_gradient
        def op(*tensors: tf.Tensor) -> Any:
            stopped = [tf.stop_gradient(x) for x in tensors]
            operands, bias, parameters = self._split(stopped)
            incoming = stopped[self.inputs :]
            safe = Operands.of(*operands, guarded=self.attention.mask is not None)
            lse_gradient = incoming[1] if self.return_lse else None
            received = Results(output, softmax, incoming[0], lse_gradient)
            results = backward(self.attention, self.plan, safe, bias, parameters, received)

            def gradient(*cotangents: tf.Tensor) -> Any:
                return second_gradient(
                    self.attention,
                    self.scores_per_pair,
                    *self._split(tensors),
                    tensors[self.inputs :],
                    cotangents,
                )

            return results, gradient

        return op(*inputs, *incoming)
