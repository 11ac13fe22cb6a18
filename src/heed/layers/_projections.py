"""The projections of multi-head attention as EinsumDense layers.

EinsumDense, under Keras' own names and with Keras' kernel shapes, so that weights, files, LoRA and
quantisation of keras.layers.MultiHeadAttention and GroupQueryAttention work on heed's layer; and
one product of two matrices in each.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any

import keras

from heed.layers.flat_dense import FlatEinsumDense


def clone_initializer(initializer: Any) -> Any:
    """A fresh copy: an initializer without a seed gives one object's users the same values."""
    if isinstance(initializer, keras.initializers.Initializer):
        return initializer.__class__.from_config(initializer.get_config())
    return initializer


def projection(
    name: str,
    shape: Sequence[Any],
    contracted: int,
    width: Sequence[int],
    use_bias: bool,
    **options: Any,
) -> FlatEinsumDense:
    """A built layer that contracts the last axes of inputs of this shape with a kernel (..., *width).

    (B, ..., D) becomes (B, ..., N, H) with one axis contracted, (B, ..., N, V) becomes (B, ..., D) with two.
    """
    kept, rank = len(shape) - contracted, len(shape)
    letters = string.ascii_lowercase
    positions, inner, outer = letters[:kept], letters[kept:rank], letters[rank : rank + len(width)]
    layer = FlatEinsumDense(
        f"{positions}{inner},{inner}{outer}->{positions}{outer}",
        output_shape=(*(None,) * (kept - 1), *width),
        bias_axes=outer if use_bias else None,
        name=name,
        **options,
    )
    # What goes into a cache may carry a mask, which is for the attention layer to handle; without
    # this Keras would warn that the projection destroys it.
    layer.supports_masking = True
    layer.build(shape)
    return layer


def once(project: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same function, which computes what it makes of a tensor once; for one call of a layer."""
    made: dict[int, tuple[Any, Any]] = {}

    def projected(x: Any) -> Any:
        if id(x) not in made:
            made[id(x)] = (x, project(x))  # with the tensor: its id is its own while it lives
        return made[id(x)][1]

    return projected
