"""Random inputs, the same in each process, as NumPy arrays in float32."""

from __future__ import annotations

import numpy as np

from benchmarks.cases import Case

Array = np.ndarray


def inputs(case: Case) -> list[Array]:
    """Return query, key, value: (B, T, N, H), (B, S, K, H), (B, S, K, H).

    For additive attention: query (B, T, U), key and value (B, S, U), and the score vector (U,). For a layer: only the
    hidden states (B, T, N*H).
    """
    B, T, S, H = case.batch, case.length, case.key_length, case.head_dim
    if case.kind == "layer":
        return _normal((B, T, case.heads * H))
    if case.kind == "additive":
        *tensors, vector = _normal((B, T, H), (B, S, H), (B, S, H), (H,))
        return [*tensors, vector * np.float32(H**-0.5)]
    keys = (B, S, case.key_head_count, H)
    return _normal((B, T, case.heads, H), keys, keys)


def layer_weights(case: Case) -> list[Array]:
    """Return weights of multi-head attention in Keras' order: kernel and bias of query, key, value, output."""
    N, H = case.heads, case.head_dim
    D = N * H
    into, out_of = [(D, N, H), (N, H)], [(N, H, D), (D,)]
    return [array * np.float32(D**-0.5) for array in _normal(*into, *into, *into, *out_of, seed=2)]


def output_gradient(case: Case) -> Array:
    """Return the gradient of the output, in its shape."""
    shape: tuple[int, ...] = (case.batch, case.length, case.heads, case.head_dim)
    if case.kind == "additive":
        shape = (case.batch, case.length, case.head_dim)
    elif case.kind == "layer":
        shape = (case.batch, case.length, case.heads * case.head_dim)
    return _normal(shape, seed=1)[0]


def _normal(*shapes: tuple[int, ...], seed: int = 0) -> list[Array]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape, dtype=np.float32) for shape in shapes]


def heads_first(array: Array) -> Array:
    """Map (B, T, N, H) to (B, N, T, H) and back, contiguous."""
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3))
