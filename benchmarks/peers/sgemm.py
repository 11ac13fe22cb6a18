"""The machine's rate of float32 matrix products, SIZE by SIZE, by three libraries.

The time of such a side is that of the case's matrix products at this rate. So peer's time / heed's time is the share of
the rate that heed reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cases import Case
from benchmarks.peers import Prepared, threads

SIZE = 4096


def matrices() -> list[np.ndarray]:
    """Return the two factors."""
    generator = np.random.default_rng(0)
    return [generator.standard_normal((SIZE, SIZE), dtype=np.float32) for _ in range(2)]


def prepare_numpy(case: Case) -> Prepared:
    """Call `numpy.matmul`, which is its BLAS library; each product is written into the same memory."""
    left, right = matrices()
    product = np.empty_like(left)
    return _scale_to_case(lambda: np.matmul(left, right, out=product), case)


def prepare_tensorflow(case: Case) -> Prepared:
    """Call `tf.matmul` in a graph; each product is a new tensor."""
    import tensorflow as tf

    from benchmarks.peers import _tensorflow

    _tensorflow.set_threads()
    left, right = map(tf.constant, matrices())
    product = tf.function(tf.matmul, autograph=False)
    return _scale_to_case(lambda: product(left, right), case)


def prepare_torch(case: Case) -> Prepared:
    """Call `torch.matmul`; each product is written into the same memory."""
    import torch

    torch.set_num_threads(threads() or torch.get_num_threads())
    left, right = map(torch.from_numpy, matrices())
    product = torch.empty_like(left)
    return _scale_to_case(lambda: torch.matmul(left, right, out=product), case)


def _scale_to_case(run: Callable[[], Any], case: Case) -> Prepared:
    """Return a side with the time of `run`, scaled from its operations to the case's."""
    return Prepared(run, lambda product: [np.asarray(product)], case.operations / (2.0 * SIZE**3))
