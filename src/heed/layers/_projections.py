"""The projections of multi-head attention as EinsumDense layers.

They have Keras' names and kernel shapes, so weights, files, LoRA and quantisation of keras.layers.MultiHeadAttention
and GroupQueryAttention work on heed's layer. Each is one product of two matrices.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any

import keras

from heed.layers.flat_dense import FlatEinsumDense


def clone_initializer(initializer: Any) -> Any:
    """Make a new initializer of the same config: one without a seed would give all its users the same values."""
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
    """Return a built layer that contracts the last axes of inputs of this shape with a kernel (..., *width).

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
    # Otherwise Keras warns that the projection destroys masks, which the attention layer handles.
    layer.supports_masking = True
    layer.build(shape)
    return layer


def compute_once(project: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function with a memory of its results by tensor, for one call of a layer."""
    made: dict[int, tuple[Any, Any]] = {}

    def projected(x: Any) -> Any:
        if id(x) not in made:
            made[id(x)] = (x, project(x))  # the tensor too: its id is unique while it lives
        return made[id(x)][1]

    return projected
