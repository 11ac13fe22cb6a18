"""The projections of multi-head attention as EinsumDense layers.

EinsumDense, under Keras' own names and with Keras' kernel shapes, so that weights, files, LoRA and
quantisation of keras.layers.MultiHeadAttention and GroupQueryAttention work on heed's layer.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import keras


def clone_initializer(initializer: Any) -> Any:
    """A fresh copy: an initializer without a seed gives one object's users the same values."""
    if isinstance(initializer, keras.initializers.Initializer):
        return initializer.__class__.from_config(initializer.get_config())
    return initializer


def _letters(count: int, start: int = 0) -> str:
    return string.ascii_lowercase[start : start + count]


def _dense(
    name: str, kept: int, contracted: int, width: Sequence[int], use_bias: bool, options: dict
) -> keras.layers.EinsumDense:
    """Contracts the last axes of an input with a kernel; `kept` axes before them stay."""
    positions = _letters(kept)
    inner = _letters(contracted, kept)
    outer = _letters(len(width), kept + contracted)
    layer = keras.layers.EinsumDense(
        f"{positions}{inner},{inner}{outer}->{positions}{outer}",
        output_shape=(*(None,) * (kept - 1), *width),
        bias_axes=outer if use_bias else None,
        name=name,
        **options,
    )
    # What goes into a cache may carry a mask, which is for the attention layer to handle; without
    # this Keras would warn that the projection destroys it.
    layer.supports_masking = True
    return layer


def to_heads(
    name: str, rank: int, heads: int, width: int, use_bias: bool, options: dict
) -> keras.layers.EinsumDense:
    """(B, ..., D) of this rank to (B, ..., heads, width); kernel (D, heads, width)."""
    return _dense(name, rank - 1, 1, (heads, width), use_bias, options)


def from_heads(
    name: str, rank: int, output_shape: Sequence[int], use_bias: bool, options: dict
) -> keras.layers.EinsumDense:
    """(B, ..., N, V) to (B, ..., *output_shape), for inputs of this rank; kernel (N, V, ...)."""
    return _dense(name, rank - 1, 2, output_shape, use_bias, options)


def to_width(name: str, width: int, units: int, options: dict) -> keras.layers.Dense:
    """(B, T, width) to (B, T, units), built, without a bias; kernel (width, units)."""
    options = {**options, "kernel_initializer": clone_initializer(options["kernel_initializer"])}
    layer = keras.layers.Dense(units, use_bias=False, name=name, **options)
    layer.build((None, None, width))
    return layer
