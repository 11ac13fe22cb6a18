"""`heed.ops.dot_product_attention`, called without a graph."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _inputs, _tensorflow
from heed import ops

_tensorflow.set_threads()


def prepare(case: Case) -> Prepared:
    """Return the forward pass of plain or causal cases; inputs are (B, N, T, H), as for `heed_op`."""
    dtype = tf.as_dtype(case.dtype)
    arguments = [tf.cast(tf.constant(_inputs.heads_first(x)), dtype) for x in _inputs.inputs(case)]

    def arrays(results: list[tf.Tensor]) -> list[np.ndarray]:
        return [_inputs.heads_first(tf.cast(x, tf.float32).numpy()) for x in results]

    return Prepared(
        lambda: [ops.dot_product_attention(*arguments, is_causal=case.causal, layout="BNTH")],
        arrays,
    )
