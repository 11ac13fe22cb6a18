"""The decoder engine as an op of TensorFlow, for graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from heed.ops.backends.tensorflow.native import library
from heed.ops.core.decoder import describe, describe_search
from heed.ops.core.description import Batch, DecoderStack, Search


def decode(
    decoder: DecoderStack, encoder: DecoderStack | None, batch: Batch, search: Search
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Return tokens and scores as `heed.ops.core.decoder.PackedDecoder.decode` does, but for tensors."""
    weights: dict[int, Any] = {}

    def number(x: Any) -> int:
        weights.setdefault(id(x), x)
        return 1 + list(weights).index(id(x))

    stacks = describe(decoder, encoder, number)
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
        weights=[tf.convert_to_tensor(weight) for weight in weights.values()],
        stacks=bytes(stacks),
        search=bytes(describe_search(search)),
        scored=search.return_scores,
        threads=library.threads(),
    )
    rows = batch.source.shape[0]
    tokens.set_shape((rows, search.results, search.length))
    if not search.return_scores:
        return tokens, None
    scores.set_shape((rows, search.results))
    return tokens, scores
