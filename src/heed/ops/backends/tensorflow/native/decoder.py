"""The decoder engine as an op of TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from heed.ops.backends.decoder import (
    ACTIVATIONS,
    METHODS,
    WEIGHTS,
    DecoderStack,
    Dense,
    Norm,
    Positions,
    Search,
)
from heed.ops.backends.tensorflow.native import library

# The parts of a layer, in the order of native/adapters/tensorflow/decode.cc.
_NORMS = ("self_norm", "cross_norm", "feed_forward_norm")
_OWN = ("query", "key", "value", "output")
_DENSE = (*_OWN, *(f"cross_{name}" for name in _OWN), "hidden", "back")


class NativeDecoder:
    """See `DecoderEngine`."""

    def unsupported_reasons(self) -> list[str]:
        """See `DecoderEngine`."""
        reasons = list(library.machine_reasons())
        if not reasons and library.compiled_by_xla():
            reasons.append("XLA compiles this function, and it cannot compile the native ops")
        return reasons

    def decode(
        self,
        stack: DecoderStack,
        source: tf.Tensor,
        source_mask: tf.Tensor,
        encoded: tf.Tensor | None,
        positions: Positions,
        source_positions: Positions,
        search: Search,
    ) -> tf.Tensor:
        """See `DecoderEngine`."""
        slots, weights = _slots(stack)
        optional = {
            "uniform": search.uniform,
            "positions": positions.table,
            "rotation": positions.rotation,
            "relative_bias": positions.relative_bias,
            "source_positions": source_positions.table,
            "source_rotation": source_positions.rotation,
            "source_relative_bias": source_positions.relative_bias,
        }
        none = np.zeros((0,), np.float32)
        # In the order of the numbers in native/adapters/tensorflow/decode.cc.
        sizes = [
            search.length,
            stack.heads,
            stack.kv_heads,
            stack.head_dim,
            stack.value_dim,
            stack.norm_first,
            ACTIVATIONS.index(stack.activation),
            len(stack.layers),
            0 if stack.encoder is None else len(stack.encoder.layers),
            stack.logits is not None and stack.logits.transposed,
            WEIGHTS.index(stack.weights),
            search.pad,
            search.start,
            search.end,
            METHODS.index(search.method),
            search.top_k or 0,
            search.beam_size,
            library.threads(),
        ]
        settings = [
            stack.embedding_scale,
            stack.epsilon,
            search.temperature,
            search.top_p or 0.0,
            search.length_penalty,
        ]
        tokens = library.ops().heed_decode(
            source=source,
            source_mask=source_mask,
            encoded=np.zeros((0, 0, 0), np.float32) if encoded is None else encoded,
            **{name: none if x is None else x for name, x in optional.items()},
            sizes=np.array(sizes, np.int64),
            settings=np.array(settings, np.float64),
            slots=np.array(slots, np.int64),
            weights=weights,
        )
        tokens.set_shape((source.shape[0], search.length))
        return tokens


def _slots(stack: DecoderStack) -> tuple[list[int], list[tf.Tensor]]:
    """Which of the weights stands in each slot, -1 for none; and the weights, each once."""
    slots: list[int] = []
    weights: dict[int, Any] = {}
    for weight in _in_order(stack):
        if weight is None:
            slots.append(-1)
            continue
        weights.setdefault(id(weight), weight)
        slots.append(list(weights).index(id(weight)))
    return slots, [tf.convert_to_tensor(weight) for weight in weights.values()]


def _in_order(stack: DecoderStack) -> Iterator[Any]:
    """The weights of a stack as native/adapters/tensorflow/decode.cc reads them, None where there is none."""
    if stack.encoder is not None:
        yield from _in_order(stack.encoder)
    yield stack.embedding
    yield from _norm(stack.final_norm)
    yield from _dense(stack.logits)
    for layer in stack.layers:
        for name in _NORMS:
            yield from _norm(getattr(layer, name))
        for name in _DENSE:
            yield from _dense(getattr(layer, name))


def _norm(norm: Norm | None) -> tuple[Any, Any]:
    return (None, None) if norm is None else (norm.gamma, norm.beta)


def _dense(dense: Dense | None) -> tuple[Any, Any]:
    return (None, None) if dense is None else (dense.weight, dense.bias)
