"""The decoder engine as an op of TensorFlow."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
import tensorflow as tf

from heed.ops.backends.decoder import Batch, DecoderStack, Search, named_fields
from heed.ops.backends.tensorflow.native import library
from heed.ops.backends.tensorflow.native.token_stream import TokenStream


class NativeDecoder:
    """See `DecoderEngine`."""

    def unsupported_reasons(self) -> list[str]:
        """See `DecoderEngine`."""
        reasons = list(library.machine_reasons())
        if not reasons and library.compiled_by_xla():
            reasons.append("XLA compiles this function, and it cannot compile the native ops")
        return reasons

    def decode(
        self, decoder: DecoderStack, encoder: DecoderStack | None, batch: Batch, search: Search
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """See `DecoderEngine`."""
        fields = [
            *named_fields("decoder", decoder),
            *named_fields("encoder", encoder),
            *named_fields("search", search),
            ("search/threads", library.threads()),
        ]
        values, weights = _values_and_weights([value for _, value in fields])
        optional = {
            "uniform": batch.uniform,
            "positions": batch.positions.table,
            "rotation": batch.positions.rotation,
            "relative_bias": batch.positions.relative_bias,
            "source_positions": batch.source_positions.table,
            "source_rotation": batch.source_positions.rotation,
            "source_relative_bias": batch.source_positions.relative_bias,
        }
        none = np.zeros((0,), np.float32)
        tokens, scores = library.ops().heed_decode(
            source=batch.source,
            source_mask=batch.source_mask,
            encoded=np.zeros((0, 0, 0), np.float32) if batch.encoded is None else batch.encoded,
            **{name: none if x is None else x for name, x in optional.items()},
            prompt=np.zeros((0,), np.int32) if batch.prompt is None else batch.prompt,
            stream=np.zeros((0,), np.int64) if batch.stream is None else batch.stream,
            values=np.array(values, np.float64),
            weights=[tf.convert_to_tensor(weight) for weight in weights],
            names="\n".join(name for name, _ in fields),
        )
        rows = batch.source.shape[0]
        tokens.set_shape((rows, search.results, search.length))
        if not search.return_scores:
            return tokens, None
        scores.set_shape((rows, search.results))
        return tokens, scores

    def open_stream(self) -> TokenStream:
        """See `DecoderEngine`."""
        return TokenStream()


def _values_and_weights(fields: list[Any]) -> tuple[list[float], list[Any]]:
    """The op's `values`, numbers or indices of weights, and its `weights`, each once."""
    weights = {id(field): field for field in fields if not isinstance(field, Real)}
    indices = {key: index for index, key in enumerate(weights)}
    return [float(indices.get(id(x), x)) for x in fields], [*weights.values()]
