"""The decoder engine as an op of TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from heed.ops.backends.decoder import (
    ACTIVATIONS,
    METHODS,
    WEIGHTS,
    DecoderAttention,
    DecoderLayer,
    DecoderStack,
    Dense,
    Norm,
    Positions,
    Search,
)
from heed.ops.backends.tensorflow.native import library


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
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """See `DecoderEngine`."""
        told = _Told()
        if stack.encoder is not None:
            told.stack(stack.encoder)
        told.stack(stack)
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
            stack.encoder is not None,
            WEIGHTS.index(stack.weights),
            search.pad,
            search.start,
            search.end,
            METHODS.index(search.method),
            search.top_k or 0,
            search.beam_size,
            search.results,
            search.scored,
            library.threads(),
        ]
        settings = [search.temperature, search.top_p or 0.0, search.length_penalty]
        tokens, scores = library.ops().heed_decode(
            source=source,
            source_mask=source_mask,
            encoded=np.zeros((0, 0, 0), np.float32) if encoded is None else encoded,
            **{name: none if x is None else x for name, x in optional.items()},
            prompt=np.zeros((0,), np.int32) if search.prompt is None else search.prompt,
            sizes=np.array(sizes, np.int64),
            settings=np.array(settings, np.float64),
            numbers=np.array(told.numbers, np.float64),
            slots=np.array(told.slots, np.int64),
            weights=[tf.convert_to_tensor(weight) for weight in told.weights.values()],
        )
        tokens.set_shape((source.shape[0], search.results, search.length))
        if not search.scored:
            return tokens, None
        scores.set_shape((source.shape[0], search.results))
        return tokens, scores


class _Told:
    """What native/adapters/tensorflow/decode.cc is told of a stack, in the order in which it asks.

    Attributes:
        numbers: sizes and choices.
        slots: which of the weights, -1 for none.
        weights: each once, by its identity.
    """

    def __init__(self) -> None:
        self.numbers: list[float] = []
        self.slots: list[int] = []
        self.weights: dict[int, Any] = {}

    def stack(self, stack: DecoderStack) -> None:
        self._tell(stack.heads, stack.kv_heads, stack.head_dim, stack.value_dim)
        self._tell(stack.embedding_scale, len(stack.layers))
        self._weigh(stack.embedding)
        self._norm(stack.final_norm)
        self._tell(stack.logits is not None and stack.logits.transposed)
        self._dense(stack.logits)
        for layer in stack.layers:
            self._layer(layer)

    def _layer(self, layer: DecoderLayer) -> None:
        self._tell(layer.norm_first, ACTIVATIONS.index(layer.activation))
        self._norm(layer.self_norm)
        self._attention(layer.self_attention)
        self._tell(layer.cross_attention is not None)
        if layer.cross_attention is not None:
            self._norm(layer.cross_norm)
            self._attention(layer.cross_attention)
        self._norm(layer.feed_forward_norm)
        self._dense(layer.hidden, layer.up, layer.back)

    def _attention(self, attention: DecoderAttention) -> None:
        self._dense(attention.query, attention.key, attention.value, attention.output)
        self._dense(attention.gate)
        self._norm(attention.query_norm)
        self._norm(attention.key_norm)
        self._weigh(attention.sinks)
        self._tell(attention.soft_cap or 0.0, attention.window or 0)

    def _norm(self, norm: Norm | None) -> None:
        norm = norm or Norm(None, None, 0.0)
        self._weigh(norm.gamma, norm.beta)
        self._tell(norm.epsilon, norm.root_mean_square)

    def _dense(self, *layers: Dense | None) -> None:
        for layer in layers:
            self._weigh(*((None, None) if layer is None else (layer.weight, layer.bias)))

    def _tell(self, *numbers: float) -> None:
        self.numbers.extend(map(float, numbers))

    def _weigh(self, *weights: Any) -> None:
        for weight in weights:
            if weight is None:
                self.slots.append(-1)
                continue
            self.weights.setdefault(id(weight), weight)
            self.slots.append(list(self.weights).index(id(weight)))
