"""Keras infers shapes by tracing with sizes that are symbols, with which no program can be compiled."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from heed.ops.spec import AttentionSpec, Tensors


def has_symbols(tensors: Tensors) -> bool:
    """Return whether a size of query, key or value is a symbol.

    Raises:
        ValueError: if it is one, but the caller will not only read shapes (`jax.export` has such sizes, too).
    """
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope

    arrays = (tensors.query, tensors.key, tensors.value)
    if all(isinstance(n, int) for x in arrays for n in x.shape):
        return False
    if not in_symbolic_scope():
        shapes = ", ".join(map(str, (x.shape for x in arrays)))
        raise ValueError(
            f"`query`, `key` and `value` must have sizes that are numbers. Received: {shapes}"
        )
    return True


def placeholder(
    spec: AttentionSpec, tensors: Tensors, return_lse: bool
) -> tuple[jax.Array, jax.Array | None]:
    """Return an output and a log-sum-exp of the right shapes and dtypes; see `Implementation.attend`."""
    query, width = tensors.query, tensors.value.shape[-1]
    output = jnp.zeros((*query.shape[:-1], width), query.dtype)
    shape = query.shape[:-1]
    if spec.heads_axis == 2:
        shape = (shape[0], shape[2], shape[1])
    return output, jnp.zeros(shape, spec.dtype) if return_lse else None
