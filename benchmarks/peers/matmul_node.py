"""A graph node that does next to nothing: one 4 by 4 matrix product for each attention of a case."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from benchmarks.cases import Case
from benchmarks.peers import Prepared, _tensorflow

_tensorflow.set_threads()


def prepare(case: Case) -> Prepared:
    """Return the time of one more node; only the case's chain matters."""
    square = tf.eye(4)

    def make(count: int):  # type: ignore[no-untyped-def]
        def chain(x: tf.Tensor) -> tf.Tensor:
            for _ in range(count):
                x = tf.matmul(x, square)
            return x

        graph = tf.function(chain, autograph=False).get_concrete_function(square)
        return lambda: graph(square)

    return Prepared.chain(case, make, lambda product: [np.asarray(product)])
