"""A node of a graph that does next to nothing: matrix products of 4 by 4, as many as a case has attentions."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _tensorflow

_tensorflow.set_threads()


def prepare(case: Case) -> Prepared:
    """Of the case only the chain counts: the time of one more node."""
    square = tf.eye(4)

    def make(count: int):  # type: ignore[no-untyped-def]
        def chain(x: tf.Tensor) -> tf.Tensor:
            for _ in range(count):
                x = tf.matmul(x, square)
            return x

        graph = tf.function(chain, autograph=False).get_concrete_function(square)
        return lambda: graph(square)

    return Prepared.chain(case, make, lambda product: [np.asarray(product)])
